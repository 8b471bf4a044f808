// expect: B11
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::objective::grpo<8>> {};
#else
struct mine : keel::recipe<keel::objective::grpo<1>> {};
#endif

template struct keel::checked<mine>;
