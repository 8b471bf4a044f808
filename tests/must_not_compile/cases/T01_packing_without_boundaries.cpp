// expect: T01
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::data::is<keel::data::packed>, keel::model::has<keel::model::sequence_boundaries>> {};
#else
struct mine : keel::recipe<keel::data::is<keel::data::packed>> {};
#endif

template struct keel::checked<mine>;
