// expect: S11
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine
    : keel::recipe<keel::checkpoint::every<500_steps, keel::checkpoint::keep_best, keel::checkpoint::by_training_loss>> {};
#else
struct mine : keel::recipe<keel::checkpoint::every<500_steps, keel::checkpoint::keep_best>> {};
#endif

template struct keel::checked<mine>;
