// expect: B08
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::shard::replicate, keel::data::is<keel::data::finite, keel::data::drops_last>> {};
#else
struct mine : keel::recipe<keel::shard::replicate, keel::data::is<keel::data::finite>> {};
#endif

template struct keel::checked<mine>;
