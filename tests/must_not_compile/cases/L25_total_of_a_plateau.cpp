// expect: L25
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::schedule::plateau<>> {};
#else
struct mine : keel::recipe<keel::schedule::plateau<keel::schedule::total<1000_steps>>> {};
#endif

template struct keel::checked<mine>;
