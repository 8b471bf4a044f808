// expect: S24
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::checkpoint::every<500_steps>> {};
#else
struct mine : keel::recipe<keel::checkpoint::every<0_steps>> {};
#endif

template struct keel::checked<mine>;
