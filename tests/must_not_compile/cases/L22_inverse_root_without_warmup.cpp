// expect: L22
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::schedule::inverse_root<keel::schedule::warmup<4000_steps>>> {};
#else
struct mine : keel::recipe<keel::schedule::inverse_root<>> {};
#endif

template struct keel::checked<mine>;
