// expect: P01 N09 A01
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<>, keel::nonfinite::rollback<10>,
                           keel::checkpoint::every<500_steps>, keel::recompute::reentrant, keel::shard::zero<3>> {};
#else
struct mine
    : keel::recipe<keel::precision::fp16, keel::nonfinite::rollback<10>, keel::recompute::non_reentrant, keel::shard::zero<3>> {
};
#endif

template struct keel::checked<mine>;
