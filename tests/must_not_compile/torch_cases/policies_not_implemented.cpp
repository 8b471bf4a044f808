// expect: U04 U08 U09 U09 U13 U13 U13 U22 U23 U36 U37 U38 U41 U43 U44 U46 U58 U58
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/step/step.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
using shards = keel::shard::none;
using watches = keel::health::off;
using watches_rewards = keel::health::off;
using looks = keel::batch_guard::on;
using aims = keel::objective::supervised;
using saves = keel::checkpoint::never;
using repeats = keel::determinism::off;
using skips = keel::nonfinite::skip<10>;
using evaluates = keel::evaluation::none;
using profiles = keel::profile::off;
using keeps = keel::incident::trace<3>;
using times_out = keel::timeout::none;
using beats = keel::timeout::none;
using has_grace = keel::timeout::none;
struct goes_back : keel::recipe<keel::nonfinite::skip<10>> {};
#else
using shards = keel::shard::zero<3>;
using watches = keel::health::sft;
using watches_rewards = keel::health::grpo;
using looks = keel::batch_guard::check<>;
using aims = keel::objective::grpo<8>;
using saves = keel::checkpoint::every<500_steps>;
using repeats = keel::determinism::seeded<1>;
using skips = keel::nonfinite::warn<10>;
using evaluates = keel::evaluation::every<500_steps>;
using profiles = keel::profile::every<1000_steps>;
using keeps = keel::incident::keep<3>;
using times_out = keel::timeout::set<keel::timeout::hard<10_min>>;
using beats = keel::timeout::set<keel::timeout::heartbeat<5_s, 30_s>>;
using has_grace = keel::timeout::set<keel::timeout::grace<60_s>>;
struct goes_back : keel::recipe<saves, keel::nonfinite::rollback<10>> {};
#endif

void build(torch::nn::Linear& model, torch::optim::AdamW& optimizer) {
  keel::step<keel::recipe<shards, keel::nonfinite::skip<10, keel::nonfinite::exceptions>>> u04{model, optimizer};
  keel::step<keel::recipe<watches_rewards, aims>> u08{model, optimizer};
  keel::step<keel::recipe<watches>> u41{model, optimizer};
  keel::step<keel::recipe<looks>> u43{model, optimizer};
  keel::step<keel::recipe<aims>> u09{model, optimizer};
  keel::step<keel::recipe<repeats>> u22{model, optimizer};
  keel::step<keel::recipe<skips>> u23{model, optimizer};
  keel::step<keel::recipe<saves>> u13{model, optimizer};
  keel::step<keel::recipe<evaluates>> u37{model, optimizer};
  keel::step<goes_back> u36{model, optimizer};
  keel::step<keel::recipe<saves, has_grace>> u38{model, optimizer};
  keel::step<keel::recipe<profiles>> u44{model, optimizer};
  keel::step<keel::recipe<keeps>> u46{model, optimizer};
  keel::step<keel::recipe<beats>> u58_too{model, optimizer};
  keel::step<keel::recipe<times_out>> u58{model, optimizer};
}
