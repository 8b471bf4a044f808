// expect: Y10
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::health::off> {};
#else
struct mine : keel::recipe<keel::health::watch<> > {};
#endif

template struct keel::checked<mine>;
