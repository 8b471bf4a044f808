// expect: O06
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::fused_attention, keel::oom::give_up>> {};
#else
struct mine : keel::recipe<keel::oom::ladder<keel::oom::fused_attention, keel::oom::halve_micro_batch, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
