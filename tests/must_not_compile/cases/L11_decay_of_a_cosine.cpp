// expect: L11
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::schedule::warmup_stable_decay<keel::schedule::decay<100_steps>>> {};
#else
struct mine : keel::recipe<keel::schedule::cosine<keel::schedule::decay<100_steps>>> {};
#endif

template struct keel::checked<mine>;
