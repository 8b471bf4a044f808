// expect: O08
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::oom::ladder<keel::oom::offload_optimizer, keel::oom::give_up>> {};
#else
struct mine : keel::recipe<keel::offload::optimizer, keel::oom::ladder<keel::oom::offload_optimizer, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
