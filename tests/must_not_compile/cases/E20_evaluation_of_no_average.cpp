// expect: E20
#include <keel/recipe.hpp>

using namespace keel::literals;

using averaged = keel::evaluation::every<500_steps, keel::evaluation::averaged>;

#ifdef KEEL_TWIN
struct mine : keel::recipe<averaged, keel::ema<0.999>> {};
#else
struct mine : keel::recipe<averaged> {};
#endif

template struct keel::checked<mine>;
