// expect: Z02
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::offload::none, keel::optimizer::is<keel::optimizer::device_only>> {};
#else
struct mine : keel::recipe<keel::offload::optimizer, keel::optimizer::is<keel::optimizer::device_only>> {};
#endif

template struct keel::checked<mine>;
