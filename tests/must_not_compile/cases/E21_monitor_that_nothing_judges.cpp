// expect: E21
#include <keel/recipe.hpp>

using namespace keel::literals;

using monitored =
    keel::evaluation::every<500_steps, keel::evaluation::monitor<"accuracy">, keel::evaluation::larger_is_better>;

#ifdef KEEL_TWIN
struct mine : keel::recipe<monitored, keel::checkpoint::every<500_steps, keel::checkpoint::keep_best,
                                                              keel::checkpoint::by_evaluation>> {};
#else
struct mine : keel::recipe<monitored, keel::checkpoint::every<500_steps>> {};
#endif

template struct keel::checked<mine>;
