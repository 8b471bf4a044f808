// expect: O22
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine
    : keel::recipe<keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up, keel::oom::release_after<500_steps>>> {};
#else
struct mine
    : keel::recipe<keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up, keel::oom::release_after<0_steps>>> {};
#endif

template struct keel::checked<mine>;
