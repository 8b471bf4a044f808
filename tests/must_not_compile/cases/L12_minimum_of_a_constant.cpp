// expect: L12
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::schedule::linear<keel::schedule::min_ratio<0.1>>> {};
#else
struct mine : keel::recipe<keel::schedule::constant_with<keel::schedule::min_ratio<0.1>>> {};
#endif

template struct keel::checked<mine>;
