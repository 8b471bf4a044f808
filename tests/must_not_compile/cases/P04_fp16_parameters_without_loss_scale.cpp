// expect: P04
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::model::has<keel::model::bfloat16_parameters>> {};
#else
struct mine : keel::recipe<keel::model::has<keel::model::half_parameters>> {};
#endif

template struct keel::checked<mine>;
