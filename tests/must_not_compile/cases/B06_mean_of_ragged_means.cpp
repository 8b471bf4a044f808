// expect: B06
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::data::is<keel::data::ragged, keel::data::token_weighted>, keel::accumulate<4>> {};
#else
struct mine : keel::recipe<keel::data::is<keel::data::ragged>, keel::accumulate<4>> {};
#endif

template struct keel::checked<mine>;
