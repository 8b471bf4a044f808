// expect: D20
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::checkpoint::every<500_steps, keel::checkpoint::keep<3>>> {};
#else
struct mine : keel::recipe<keel::checkpoint::every<500_steps, keel::checkpoint::keep<2>, keel::checkpoint::keep<3>>> {};
#endif

template struct keel::checked<mine>;
