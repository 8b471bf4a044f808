// expect: O13
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::device::cuda, keel::oom::ladder<keel::oom::offload_optimizer, keel::oom::give_up>> {};
#else
struct mine : keel::recipe<keel::device::cuda_with<keel::device::graph_captured>,
                           keel::oom::ladder<keel::oom::offload_optimizer, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
