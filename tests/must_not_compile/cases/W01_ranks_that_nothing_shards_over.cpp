// expect: W01
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::world::size<2>, keel::shard::replicate> {};
#else
struct mine : keel::recipe<keel::world::size<2> > {};
#endif

template struct keel::checked<mine>;
