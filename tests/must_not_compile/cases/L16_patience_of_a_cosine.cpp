// expect: L16
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::schedule::plateau<keel::schedule::patience<100_steps>>> {};
#else
struct mine : keel::recipe<keel::schedule::cosine<keel::schedule::patience<100_steps>>> {};
#endif

template struct keel::checked<mine>;
