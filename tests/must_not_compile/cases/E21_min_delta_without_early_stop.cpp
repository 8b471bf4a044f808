// expect: E21
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::evaluation::every<500_steps, keel::evaluation::min_delta<0.01>, keel::evaluation::early_stop<3>>> {
};
#else
struct mine : keel::recipe<keel::evaluation::every<500_steps, keel::evaluation::min_delta<0.01>>> {};
#endif

template struct keel::checked<mine>;
