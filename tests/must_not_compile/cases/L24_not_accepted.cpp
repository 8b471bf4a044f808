// expect: L24
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::schedule::plateau<keel::schedule::evaluations<3>>, keel::accept<"L24">> {};
#else
struct mine : keel::recipe<keel::schedule::plateau<keel::schedule::evaluations<3>>> {};
#endif

template struct keel::checked<mine>;
