// Validates and prints a recipe. Needs no LibTorch and compiles in a fraction of a second.
// [recipe]
#include <keel/recipe.hpp>

using namespace keel::literals;

struct pretrain : keel::recipe<
    keel::precision::bf16,
    keel::accumulate<4>,
    keel::clip::global_norm<1.0>,
    keel::nonfinite::rollback<10>,       // after ten bad updates in a row: load a checkpoint and skip that data
    keel::checkpoint::every<500_steps>,
    keel::recompute::non_reentrant,
    keel::shard::zero<1>,
    keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::offload_optimizer, keel::oom::give_up>> {};

static_assert(keel::valid<pretrain>);    // a bool; an invalid recipe is not an error by itself
template struct keel::checked<pretrain>; // one compile error for each broken rule
// [recipe]

#include <cstdio>

int main() {
  std::fputs(keel::describe<pretrain>().c_str(), stdout);

  // [run_time_check]
  keel::config tool = keel::config_of<pretrain>;
  tool.shard.stage = 3;   // from a file, a form, a planner
  for (keel::violation const& broken : keel::check(tool)) std::puts(broken.text);
  // [run_time_check]
  return keel::check(tool).has("A01") ? 0 : 1;
}
