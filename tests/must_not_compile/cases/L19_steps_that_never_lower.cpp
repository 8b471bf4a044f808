// expect: L19
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::schedule::step_decay<keel::schedule::interval<100_steps>, keel::schedule::lowered_by<0.5>>> {};
#else
struct mine : keel::recipe<keel::schedule::step_decay<keel::schedule::interval<100_steps>, keel::schedule::lowered_by<1.0>>> {};
#endif

template struct keel::checked<mine>;
