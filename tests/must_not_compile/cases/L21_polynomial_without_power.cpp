// expect: L21
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::schedule::polynomial<keel::schedule::power<2.0>>> {};
#else
struct mine : keel::recipe<keel::schedule::polynomial<>> {};
#endif

template struct keel::checked<mine>;
