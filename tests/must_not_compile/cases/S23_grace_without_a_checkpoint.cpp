// expect: S23
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::timeout::set<keel::timeout::grace<60_s>>, keel::checkpoint::every<500_steps>> {};
#else
struct mine : keel::recipe<keel::timeout::set<keel::timeout::grace<60_s>>> {};
#endif

template struct keel::checked<mine>;
