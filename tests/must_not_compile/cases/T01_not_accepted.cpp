// expect: T01
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::data::is<keel::data::packed>, keel::accept<"T01">> {};
#else
struct mine : keel::recipe<keel::data::is<keel::data::packed>> {};
#endif

template struct keel::checked<mine>;
