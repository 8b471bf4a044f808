// expect: B06
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::accumulate<1>, keel::data::is<keel::data::ragged, keel::data::token_weighted>,
                           keel::shard::replicate> {};
#else
struct mine : keel::recipe<keel::accumulate<1>, keel::data::is<keel::data::ragged>, keel::shard::replicate> {};
#endif

template struct keel::checked<mine>;
