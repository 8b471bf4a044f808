// expect: D26
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::evaluation::every<500_steps>> {};
#else
struct mine : keel::recipe<keel::evaluation::every<500>> {};
#endif

template struct keel::checked<mine>;
