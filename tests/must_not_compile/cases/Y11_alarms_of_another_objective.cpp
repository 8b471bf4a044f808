// expect: Y11
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::health::grpo, keel::objective::grpo<8>> {};
#else
struct mine : keel::recipe<keel::health::grpo, keel::objective::supervised> {};
#endif

template struct keel::checked<mine>;
