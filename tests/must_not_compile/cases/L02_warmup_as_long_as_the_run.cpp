// expect: L02
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::schedule::cosine<keel::schedule::warmup<10_steps>, keel::schedule::total<100_steps>>> {};
#else
struct mine : keel::recipe<keel::schedule::cosine<keel::schedule::warmup<100_steps>, keel::schedule::total<100_steps>>> {};
#endif

template struct keel::checked<mine>;
