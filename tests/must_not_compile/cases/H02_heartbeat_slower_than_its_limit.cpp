// expect: H02
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::timeout::set<keel::timeout::heartbeat<5_s, 30_s>>> {};
#else
struct mine : keel::recipe<keel::timeout::set<keel::timeout::heartbeat<30_s, 5_s>>> {};
#endif

template struct keel::checked<mine>;
