// expect: D27
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::device::cuda> {};
#else
struct mine : keel::recipe<keel::device::cuda, keel::device::cpu> {};
#endif

template struct keel::checked<mine>;
