// expect: H03
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::checkpoint::every<500_steps>,
                           keel::timeout::set<keel::timeout::grace<60_s>, keel::timeout::force_exit<50_s>>> {};
#else
struct mine : keel::recipe<keel::checkpoint::every<500_steps>,
                           keel::timeout::set<keel::timeout::grace<60_s>, keel::timeout::force_exit<60_s>>> {};
#endif

template struct keel::checked<mine>;
