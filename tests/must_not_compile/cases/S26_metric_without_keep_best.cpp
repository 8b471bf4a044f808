// expect: S26
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine
    : keel::recipe<keel::checkpoint::every<500_steps, keel::checkpoint::by_training_loss, keel::checkpoint::keep_best>> {};
#else
struct mine : keel::recipe<keel::checkpoint::every<500_steps, keel::checkpoint::by_training_loss>> {};
#endif

template struct keel::checked<mine>;
