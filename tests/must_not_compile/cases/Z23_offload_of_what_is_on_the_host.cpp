// expect: Z23
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::offload::none, keel::optimizer::is<keel::optimizer::state_on_host>> {};
#else
struct mine : keel::recipe<keel::offload::optimizer, keel::optimizer::is<keel::optimizer::state_on_host>> {};
#endif

template struct keel::checked<mine>;
