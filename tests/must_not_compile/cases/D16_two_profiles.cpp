// expect: D16
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::profile::every<1000_steps>> {};
#else
struct mine : keel::recipe<keel::profile::every<1000_steps>, keel::profile::off> {};
#endif

template struct keel::checked<mine>;
