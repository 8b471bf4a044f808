// expect: N30
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::incident::keep<1>> {};
#else
struct mine : keel::recipe<keel::incident::keep<0>> {};
#endif

template struct keel::checked<mine>;
