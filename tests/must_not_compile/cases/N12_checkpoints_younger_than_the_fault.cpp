// expect: N12
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::nonfinite::rollback<1000>, keel::checkpoint::every<500_steps, keel::checkpoint::keep<3>>> {};
#else
struct mine : keel::recipe<keel::nonfinite::rollback<1000>, keel::checkpoint::every<500_steps, keel::checkpoint::keep<2>>> {};
#endif

template struct keel::checked<mine>;
