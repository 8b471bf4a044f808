// expect: L13
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::schedule::warmup_stable_decay<keel::schedule::decay<200_steps>>> {};
#else
struct mine : keel::recipe<keel::schedule::warmup_stable_decay<>> {};
#endif

template struct keel::checked<mine>;
