// The rules as a whole: none without an example, what a verdict is, and the recipe that keel shows first. The files in rules/
// take each family apart.
#include "rules/example.hpp"

using namespace keel::literals;

namespace {

namespace rule = keel::rule;
using judged::of;
using keel::check;
using keel::config;
using keel::recipe;
using keel::verdict;
using keel::violations;

// Each of these families has a file in rules/ that shows every rule of it, or does not compile. Whoever adds one adds its file.
static_assert(
    std::is_same_v<rule::catalogue,
                   typename rule::detail::joined<
                       rule::slot_rules, rule::given_twice_rules, rule::precision_rules, rule::clip_rules, rule::nonfinite_rules, rule::checkpoint_rules,
                       rule::accumulate_rules, rule::recompute_rules, rule::offload_rules, rule::shard_rules, rule::schedule_rules, rule::ema_rules,
                       rule::evaluation_rules, rule::device_rules, rule::profile_rules, rule::data_rules, rule::timeout_rules, rule::health_rules, rule::oom_rules>::type>);
static_assert(std::is_same_v<rule::accept_rules, rule::list<rule::D22, rule::D23, rule::D24>>);

// The two doors judge alike.
using three_faults = recipe<keel::precision::fp16, keel::nonfinite::rollback<10>, keel::clip::global_norm<0.0>>;
constexpr verdict found = violations<three_faults>;
static_assert(!keel::valid<three_faults> && keel::valid<recipe<>>);
static_assert(!found.ok() && found.size() == 3 && check(keel::config_of<three_faults>).size() == 3);
constexpr verdict nothing = check(config{});
static_assert(nothing.ok() && nothing.size() == 0 && nothing.begin() == nothing.end());
// A verdict is a range, in the catalogue's order, with the words of each rule.
static_assert(found.end() - found.begin() == 3);
static_assert(found.begin()[0].id == rule::P01::id && found.begin()[0].text == rule::P01::text);
static_assert(found.begin()[1].id == rule::G11::id && found.begin()[1].text == rule::G11::text);
static_assert(found.begin()[2].id == rule::N09::id && found.begin()[2].text == rule::N09::text);
static_assert(found.has("P01") && found.has("G11") && found.has("N09") && !found.has("P02"));
// An id is compared whole.
static_assert(!found.has("P0") && !found.has("P011") && !found.has(""));
// Products and sums of the rules end at the largest number.
using judged::least;
using judged::most;
static_assert(rule::product(3, -4) == -12 && rule::product(most / 2, 2) == most - 1 && rule::product(most, 0) == 0);
static_assert(rule::product(most / 2 + 1, 2) == most && rule::product(most, most) == most &&
              rule::product(least, least) == most);
static_assert(rule::product(most, -2) == -most && rule::product(-2, most) == -most);
static_assert(rule::sum(3, -4) == -1 && rule::sum(most - 1, 1) == most && rule::sum(most, least) == -1);
static_assert(rule::sum(most, 1) == most && rule::sum(most, most) == most && rule::sum(least, -1) == -most &&
              rule::sum(least, least) == -most);
// It never overflows, whatever is added.
static_assert([] {
  verdict full;
  for (int i = 0; i < verdict::capacity + 1; ++i) full.add({rule::P01::id, rule::P01::text});
  return full.size() == verdict::capacity;
}());

// The recipe that keel shows first.
struct pretrain
    : recipe<keel::precision::bf16, keel::accumulate<4>, keel::clip::global_norm<1.0>, keel::nonfinite::rollback<10>,
             keel::checkpoint::every<500_steps>, keel::recompute::reentrant, keel::shard::zero<3>,
             keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::offload_optimizer, keel::oom::give_up>> {};
static_assert(keel::valid<pretrain>);
static_assert(std::is_empty_v<keel::checked<pretrain>>);
template <class Recipe>
constexpr verdict in_a_world_of(long long ranks) {
  config told = keel::config_of<Recipe>;
  told.run = {.known = true, .world_size = ranks, .updates = 10'000, .learning_rate = 3e-4, .half_kernels = false};
  return check(told);
}
static_assert(in_a_world_of<pretrain>(1).ok() && in_a_world_of<pretrain>(64).ok());

}  // namespace
