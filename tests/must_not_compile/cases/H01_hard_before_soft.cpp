// expect: H01
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::timeout::set<keel::timeout::soft<1_min>, keel::timeout::hard<5_min>>> {};
#else
struct mine : keel::recipe<keel::timeout::set<keel::timeout::soft<5_min>, keel::timeout::hard<1_min>>> {};
#endif

template struct keel::checked<mine>;
