// expect: O15
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::objective::grpo<8>, keel::accumulate<1, keel::micro_batch<16>>,
                           keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
#else
struct mine : keel::recipe<keel::objective::grpo<8>, keel::accumulate<1, keel::micro_batch<8>>,
                           keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
