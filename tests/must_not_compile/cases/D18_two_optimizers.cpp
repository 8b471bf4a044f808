// expect: D18
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::optimizer::is<keel::optimizer::whole_tensors>> {};
#else
struct mine : keel::recipe<keel::optimizer::is<keel::optimizer::whole_tensors>, keel::optimizer::usual> {};
#endif

template struct keel::checked<mine>;
