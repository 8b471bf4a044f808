// expect: X07
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::profile::every<4_steps, keel::profile::warmup<1>, keel::profile::active<3>>> {};
#else
struct mine : keel::recipe<keel::profile::every<3_steps, keel::profile::warmup<1>, keel::profile::active<3>>> {};
#endif

template struct keel::checked<mine>;
