// expect: X03
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::device::cuda, keel::data::is<keel::data::ragged>> {};
#else
struct mine : keel::recipe<keel::device::cuda_with<keel::device::graph_captured>, keel::data::is<keel::data::ragged>> {};
#endif

template struct keel::checked<mine>;
