// expect: P06
// says: reached by rung 1 of oom::ladder: [P06]
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::model::has<keel::model::bfloat16_parameters>,
                           keel::oom::ladder<keel::oom::offload_optimizer, keel::oom::give_up>> {};
#else
struct mine : keel::recipe<keel::model::has<keel::model::bfloat16_parameters>,
                           keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::offload_optimizer, keel::oom::give_up>> {
};
#endif

template struct keel::checked<mine>;
