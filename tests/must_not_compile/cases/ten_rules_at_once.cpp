// expect: D00 D10 P02 G11 N10 N12 S01 B01 A01 O05
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine
    : keel::recipe<keel::health::sft, keel::precision::bf16, keel::clip::global_norm<1.0>, keel::nonfinite::rollback<10>,
                   keel::checkpoint::every<500_steps, keel::checkpoint::asynchronous, keel::checkpoint::keep<2>>,
                   keel::accumulate<4, keel::micro_batch<2>, keel::global_batch<16>>, keel::recompute::reentrant,
                   keel::shard::zero<3>, keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
#else
struct mine : keel::recipe<int, keel::health::sft, keel::health::off, keel::precision::bf16, keel::loss_scale::fixed<1024.0>,
                           keel::clip::global_norm<0.0>, keel::nonfinite::rollback<500, keel::nonfinite::change_nothing>,
                           keel::checkpoint::every<500_steps, keel::checkpoint::asynchronous, keel::checkpoint::keep<1>>,
                           keel::accumulate<4, keel::micro_batch<2>, keel::global_batch<9>>, keel::recompute::non_reentrant,
                           keel::shard::zero<3>, keel::oom::ladder<keel::oom::halve_micro_batch>> {};
#endif

template struct keel::checked<mine>;
