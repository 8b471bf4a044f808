// expect: S12
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine
    : keel::recipe<keel::checkpoint::every<10_min>, keel::evaluation::every<300_steps, keel::evaluation::early_stop<3>>> {};
#else
struct mine
    : keel::recipe<keel::checkpoint::every<500_steps>, keel::evaluation::every<300_steps, keel::evaluation::early_stop<3>>> {};
#endif

template struct keel::checked<mine>;
