// expect: Z02
// says: reached by rung 2 of oom::ladder: [Z02]
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::optimizer::is<keel::optimizer::device_only>,
                           keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
#else
struct mine : keel::recipe<keel::optimizer::is<keel::optimizer::device_only>,
                           keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::offload_optimizer, keel::oom::give_up>> {
};
#endif

template struct keel::checked<mine>;
