// What a user's smallest file is: the two lower floors and one recipe. benchmarks/run times its compilation.
#include <keel/recipe.hpp>

using namespace keel::literals;

struct pretrain : keel::recipe<keel::precision::bf16, keel::accumulate<4>, keel::clip::global_norm<1.0>, keel::nonfinite::rollback<10>,
                               keel::checkpoint::every<500_steps>, keel::recompute::reentrant, keel::shard::zero<3>,
                               keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::offload_optimizer, keel::oom::give_up>> {};

template struct keel::checked<pretrain>;
