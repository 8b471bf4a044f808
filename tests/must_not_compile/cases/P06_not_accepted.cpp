// expect: P06
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::accumulate<4>, keel::model::has<keel::model::bfloat16_parameters>, keel::accept<"P06">> {};
#else
struct mine : keel::recipe<keel::accumulate<4>, keel::model::has<keel::model::bfloat16_parameters>> {};
#endif

template struct keel::checked<mine>;
