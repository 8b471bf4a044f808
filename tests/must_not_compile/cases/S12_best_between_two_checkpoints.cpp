// expect: S12
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine
    : keel::recipe<keel::checkpoint::every<500_steps, keel::checkpoint::keep_best, keel::checkpoint::by_evaluation_loss>,
                   keel::evaluation::every<250_steps>> {};
#else
struct mine
    : keel::recipe<keel::checkpoint::every<500_steps, keel::checkpoint::keep_best, keel::checkpoint::by_evaluation_loss>,
                   keel::evaluation::every<300_steps>> {};
#endif

template struct keel::checked<mine>;
