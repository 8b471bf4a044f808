// expect: L17
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::schedule::plateau<keel::schedule::lowered_by<0.5>>> {};
#else
struct mine : keel::recipe<keel::schedule::plateau<keel::schedule::lowered_by<1.0>>> {};
#endif

template struct keel::checked<mine>;
