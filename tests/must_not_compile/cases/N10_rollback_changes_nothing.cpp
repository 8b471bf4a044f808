// expect: N10
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::nonfinite::rollback<10, keel::nonfinite::lower_lr>, keel::checkpoint::every<500_steps>> {};
#else
struct mine : keel::recipe<keel::nonfinite::rollback<10, keel::nonfinite::change_nothing>, keel::checkpoint::every<500_steps>> {
};
#endif

template struct keel::checked<mine>;
