// expect: B23
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::objective::grpo<8>> {};
#else
struct mine : keel::recipe<keel::model::has<keel::model::dropout>, keel::objective::grpo<8>> {};
#endif

template struct keel::checked<mine>;
