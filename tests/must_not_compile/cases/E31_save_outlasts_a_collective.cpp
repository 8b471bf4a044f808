// expect: E31
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::timeout::set<keel::timeout::longest_save<5_min>, keel::timeout::collective<10_min>>> {};
#else
struct mine : keel::recipe<keel::timeout::set<keel::timeout::longest_save<30_min>, keel::timeout::collective<10_min>>> {};
#endif

template struct keel::checked<mine>;
