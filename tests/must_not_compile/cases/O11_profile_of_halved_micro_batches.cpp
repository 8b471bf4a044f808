// expect: O11
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine
    : keel::recipe<keel::profile::every<1000_steps>, keel::oom::ladder<keel::oom::offload_optimizer, keel::oom::give_up>> {};
#else
struct mine
    : keel::recipe<keel::profile::every<1000_steps>, keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
