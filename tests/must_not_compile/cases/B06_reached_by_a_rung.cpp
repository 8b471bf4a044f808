// expect: B06
// says: reached by rung 3 of oom::ladder: [B06]
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine
    : keel::recipe<keel::data::is<keel::data::ragged, keel::data::token_weighted>,
                   keel::oom::ladder<keel::oom::offload_optimizer, keel::oom::enable_recompute<keel::recompute::reentrant>,
                                     keel::oom::halve_micro_batch, keel::oom::give_up>> {};
#else
struct mine
    : keel::recipe<keel::data::is<keel::data::ragged>,
                   keel::oom::ladder<keel::oom::offload_optimizer, keel::oom::enable_recompute<keel::recompute::reentrant>,
                                     keel::oom::halve_micro_batch, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
