// expect: P20
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::nonfinite::skip<10>, keel::world::size<1>> {};
#else
struct mine : keel::recipe<keel::nonfinite::skip<10, keel::nonfinite::rank_local>, keel::world::size<1>> {};
#endif

template struct keel::checked<mine>;
