// expect: D28
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::world::size<1>> {};
#else
struct mine : keel::recipe<keel::world::size<1>, keel::world::any> {};
#endif

template struct keel::checked<mine>;
