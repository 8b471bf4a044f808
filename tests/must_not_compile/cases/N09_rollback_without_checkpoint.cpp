// expect: N09
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::nonfinite::rollback<10>, keel::checkpoint::every<500_steps>> {};
#else
struct mine : keel::recipe<keel::nonfinite::rollback<10>> {};
#endif

template struct keel::checked<mine>;
