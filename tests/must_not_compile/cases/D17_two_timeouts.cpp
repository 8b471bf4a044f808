// expect: D17
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::timeout::set<keel::timeout::hard<10_min>>> {};
#else
struct mine : keel::recipe<keel::timeout::set<keel::timeout::hard<10_min>>, keel::timeout::none> {};
#endif

template struct keel::checked<mine>;
