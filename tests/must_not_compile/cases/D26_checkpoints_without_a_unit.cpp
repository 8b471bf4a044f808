// expect: D26
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::checkpoint::every<500_steps>, keel::nonfinite::rollback<10>> {};
#else
struct mine : keel::recipe<keel::checkpoint::every<500>, keel::nonfinite::rollback<10>> {};
#endif

template struct keel::checked<mine>;
