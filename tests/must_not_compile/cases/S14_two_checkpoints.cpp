// expect: S14
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::checkpoint::every<500_steps>> {};
#else
struct mine : keel::recipe<keel::checkpoint::every<500_steps>, keel::checkpoint::every<10_min>> {};
#endif

template struct keel::checked<mine>;
