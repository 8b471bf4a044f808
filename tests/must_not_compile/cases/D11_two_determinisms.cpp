// expect: D11
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::determinism::seeded<1>> {};
#else
struct mine : keel::recipe<keel::determinism::seeded<1>, keel::determinism::strict<1>> {};
#endif

template struct keel::checked<mine>;
