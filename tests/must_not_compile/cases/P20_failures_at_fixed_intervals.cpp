// expect: P20
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::checkpoint::young_daly<keel::checkpoint::mean_time_between_failures<24_h>>> {};
#else
struct mine : keel::recipe<keel::checkpoint::every<500_steps, keel::checkpoint::mean_time_between_failures<24_h>>> {};
#endif

template struct keel::checked<mine>;
