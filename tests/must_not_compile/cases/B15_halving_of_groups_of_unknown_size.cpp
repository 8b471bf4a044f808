// expect: B15
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::objective::grpo<8>, keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>,
                           keel::data::is<keel::data::grouped>> {};
#else
struct mine : keel::recipe<keel::objective::grpo<8>, keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
