// expect: H04
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::checkpoint::every<500_steps>,
                           keel::timeout::set<keel::timeout::grace<60_s>, keel::timeout::longest_update<20_s>,
                                              keel::timeout::longest_save<30_s>>> {};
#else
struct mine : keel::recipe<keel::checkpoint::every<500_steps>,
                           keel::timeout::set<keel::timeout::grace<60_s>, keel::timeout::longest_update<20_s>,
                                              keel::timeout::longest_save<40_s>>> {};
#endif

template struct keel::checked<mine>;
