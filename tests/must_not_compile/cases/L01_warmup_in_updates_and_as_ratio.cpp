// expect: L01
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::schedule::cosine<keel::schedule::warmup<10_steps>>> {};
#else
struct mine : keel::recipe<keel::schedule::cosine<keel::schedule::warmup<10_steps>, keel::schedule::warmup_ratio<0.1>>> {};
#endif

template struct keel::checked<mine>;
