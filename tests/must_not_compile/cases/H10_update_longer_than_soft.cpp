// expect: H10
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::timeout::set<keel::timeout::longest_update<30_s>, keel::timeout::soft<1_min>>> {};
#else
struct mine : keel::recipe<keel::timeout::set<keel::timeout::longest_update<2_min>, keel::timeout::soft<1_min>>> {};
#endif

template struct keel::checked<mine>;
