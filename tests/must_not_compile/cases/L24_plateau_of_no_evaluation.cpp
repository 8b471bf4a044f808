// expect: L24
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::schedule::plateau<keel::schedule::evaluations<3>>, keel::evaluation::every<500_steps>> {};
#else
struct mine : keel::recipe<keel::schedule::plateau<keel::schedule::evaluations<3>>> {};
#endif

template struct keel::checked<mine>;
