// expect: O05
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
#else
struct mine : keel::recipe<keel::oom::ladder<keel::oom::halve_micro_batch>> {};
#endif

template struct keel::checked<mine>;
