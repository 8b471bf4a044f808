// A recipe without LibTorch: written, asked, printed. Needs only the two lower floors and compiles in a fraction of a second.
// [recipe]
#include <keel/recipe.hpp>

using namespace keel::literals;

struct pretrain : keel::recipe<
    keel::precision::bf16,
    keel::accumulate<4>,
    keel::clip::global_norm<1.0>,
    keel::nonfinite::rollback<10>,       // ten bad updates in a row: roll back, skip that data, go on
    keel::checkpoint::every<500_steps>,
    keel::recompute::reentrant,
    keel::shard::zero<3>,
    keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::offload_optimizer, keel::oom::give_up>> {};

static_assert(keel::valid<pretrain>);    // asks; never a hard error
template struct keel::checked<pretrain>; // demands; the errors are the compiler's
// [recipe]

#include <cstdio>

int main() {
  std::fputs(keel::describe<pretrain>().c_str(), stdout);

  // [run_time_door]
  keel::config tool = keel::config_of<pretrain>;
  tool.recompute.kind = keel::recompute_kind::non_reentrant;   // from a file, a form, a planner
  for (keel::violation const& broken : keel::check(tool)) std::puts(broken.text);
  // [run_time_door]
  return keel::check(tool).has("A01") ? 0 : 1;
}
