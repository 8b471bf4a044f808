// expect: G14
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::clip::zscore<3.0, keel::clip::window<64>>> {};
#else
struct mine : keel::recipe<keel::clip::global_norm<1.0, keel::clip::window<64>>> {};
#endif

template struct keel::checked<mine>;
