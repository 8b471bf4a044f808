// expect: L23
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::schedule::warm_restarts<keel::schedule::cycle<1000_steps>>> {};
#else
struct mine : keel::recipe<keel::schedule::warm_restarts<keel::schedule::cycle_factor<2>>> {};
#endif

template struct keel::checked<mine>;
