// expect: B10
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::shard::replicate, keel::world::size<8>, keel::data::is<keel::data::rows<8>>> {};
#else
struct mine : keel::recipe<keel::shard::replicate, keel::world::size<8>, keel::data::is<keel::data::rows<7>>> {};
#endif

template struct keel::checked<mine>;
