// expect: L20
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::schedule::multi_step<keel::schedule::milestones<100_steps, 200_steps>>> {};
#else
struct mine : keel::recipe<keel::schedule::multi_step<keel::schedule::milestones<200_steps, 100_steps>>> {};
#endif

template struct keel::checked<mine>;
