// expect: D15
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::evaluation::every<500_steps>> {};
#else
struct mine : keel::recipe<keel::evaluation::every<500_steps>, keel::evaluation::none> {};
#endif

template struct keel::checked<mine>;
