// expect: S01
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::checkpoint::every<500_steps, keel::checkpoint::asynchronous, keel::checkpoint::keep<2>>> {};
#else
struct mine : keel::recipe<keel::checkpoint::every<500_steps, keel::checkpoint::asynchronous, keel::checkpoint::keep<1>>> {};
#endif

template struct keel::checked<mine>;
