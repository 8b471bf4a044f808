// expect: N15
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::device::cuda_with<keel::device::device_assert>, keel::nonfinite::raise> {};
#else
struct mine : keel::recipe<keel::device::cuda_with<keel::device::device_assert>, keel::nonfinite::skip<10> > {};
#endif

template struct keel::checked<mine>;
