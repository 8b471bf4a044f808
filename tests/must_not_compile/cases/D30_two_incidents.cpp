// expect: D30
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::incident::keep<3>> {};
#else
struct mine : keel::recipe<keel::incident::keep<3>, keel::incident::off> {};
#endif

template struct keel::checked<mine>;
