// expect: D07
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::offload::optimizer> {};
#else
struct mine : keel::recipe<keel::offload::optimizer, keel::offload::none> {};
#endif

template struct keel::checked<mine>;
