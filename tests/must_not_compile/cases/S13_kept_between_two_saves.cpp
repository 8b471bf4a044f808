// expect: S13
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::checkpoint::every<500_steps, keel::checkpoint::keep_every<5000_steps>>> {};
#else
struct mine : keel::recipe<keel::checkpoint::every<500_steps, keel::checkpoint::keep_every<5200_steps>>> {};
#endif

template struct keel::checked<mine>;
