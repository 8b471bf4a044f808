// What a recipe promises at compile time: free order, defaults, named structs, own policies, near misses.
#include <keel/recipe.hpp>

using namespace keel::literals;

namespace recipe_tests {

using keel::config_of;
using keel::recipe;
using keel::valid;
using keel::violations;

struct pretrain
    : recipe<keel::precision::bf16, keel::accumulate<4>, keel::clip::global_norm<1.0>, keel::nonfinite::rollback<10>,
             keel::checkpoint::every<500_steps>, keel::recompute::reentrant, keel::shard::zero<3>,
             keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::offload_optimizer, keel::oom::give_up>> {};

using pretrain_reordered =
    recipe<keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::offload_optimizer, keel::oom::give_up>,
           keel::shard::zero<3>, keel::checkpoint::every<500_steps>, keel::recompute::reentrant, keel::accumulate<4>,
           keel::nonfinite::rollback<10>, keel::clip::global_norm<1.0>, keel::precision::bf16>;

static_assert(valid<pretrain>);
static_assert(violations<pretrain>.ok() && violations<pretrain>.size() == 0);
static_assert(violations<pretrain>.begin() == violations<pretrain>.end());

// The order is free.
static_assert(config_of<pretrain> == config_of<pretrain_reordered>);
static_assert(!(config_of<pretrain> == config_of<recipe<keel::precision::bf16>>));

// A named struct, and one derived from it, is its list.
using short_list = recipe<keel::precision::bf16, keel::clip::global_norm<1.0>>;
struct named : short_list {};
struct renamed : named {};
static_assert(config_of<named> == config_of<short_list>);
static_assert(config_of<renamed> == config_of<short_list>);
static_assert(config_of<named const> == config_of<short_list>);
static_assert(valid<named> && valid<renamed> && valid<named const>);

// An absent slot takes its default, and a default that is typed changes nothing.
using defaults =
    recipe<keel::precision::fp32, keel::loss_scale::none, keel::accumulate<1>, keel::clip::none, keel::nonfinite::raise,
           keel::spike::ignore, keel::schedule::constant, keel::checkpoint::never, keel::recompute::none, keel::shard::none,
           keel::offload::none, keel::attention::automatic, keel::oom::raise, keel::health::off, keel::determinism::off,
           keel::objective::supervised, keel::no_ema, keel::model::all_trainable>;
static_assert(valid<recipe<>> && valid<defaults>);
static_assert(config_of<defaults> == config_of<recipe<>>);
static_assert(config_of<recipe<>> == keel::config{});
static_assert(config_of<recipe<keel::clip::none, keel::precision::bf16>> == config_of<recipe<keel::precision::bf16>>);
static_assert(std::is_same_v<keel::policy_of<recipe<>, keel::slot::precision>, keel::precision::fp32>);
static_assert(std::is_same_v<keel::policy_of<pretrain, keel::slot::accumulate>, keel::accumulate<4>>);
static_assert(std::is_same_v<keel::policy_of<pretrain, keel::slot::ema>, keel::no_ema>);

// Of a slot that is given twice the first is in the value, and the second is a broken rule even where it is the same policy.
using twice = recipe<keel::clip::global_norm<1.0>, keel::clip::value<0.5>>;
static_assert(config_of<twice>.clip == keel::clip::global_norm<1.0>::configured);
static_assert(config_of<twice>.has_duplicate_slot<keel::slot::clip>() && !config_of<twice>.has_duplicate_slot<keel::slot::model>());
static_assert(violations<recipe<keel::model::partly_frozen, keel::model::partly_frozen>>.has("D14"));

// Asking is never a hard error.
struct declared_only;
struct inherits_two : named, pretrain {};
class hides_its_list : recipe<> {};
static_assert(!valid<int> && !valid<void> && !valid<int&> && !valid<int[]> && !valid<int()>);
static_assert(!valid<declared_only> && !valid<inherits_two> && !valid<hides_its_list>);
static_assert(!valid<keel::clip::none>);
static_assert(!valid<recipe<int>> && !valid<recipe<void>> && !valid<recipe<int&>> && !valid<recipe<declared_only>>);
static_assert(!valid<recipe<recipe<>>>);
static_assert(violations<recipe<int>>.size() == 1 && violations<recipe<int>>.has("D00"));
static_assert(config_of<recipe<int, keel::precision::bf16, void>>.unknown_entries == 2);
static_assert(config_of<recipe<int, keel::precision::bf16, void>>.precision == keel::precision::bf16::configured);

// A user's own policy is a policy, with or without keel's base.
struct half_of_the_norm : keel::fills<keel::slot::clip> {
  static constexpr keel::clip::settings configured{keel::clip::kind::custom, 0.5};
};
struct without_base {
  using in_slot = keel::slot::clip;
  static constexpr keel::clip::settings configured{keel::clip::kind::custom, 0.5};
};
static_assert(keel::policy<half_of_the_norm> && keel::policy<without_base>);
static_assert(valid<recipe<half_of_the_norm>> && valid<recipe<without_base>>);
static_assert(config_of<recipe<half_of_the_norm>>.clip.kind == keel::clip::kind::custom);
static_assert(violations<recipe<half_of_the_norm, keel::clip::none>>.has("G07"));

// A user's own rung is a rung, and is judged as one.
struct drop_the_cache {
  static constexpr keel::oom::rung_settings rung{.kind = keel::oom::rung_kind::custom};
};
static_assert(keel::oom::rung<drop_the_cache> && !keel::oom::rung<int>);
static_assert(valid<recipe<keel::oom::ladder<drop_the_cache, drop_the_cache, keel::oom::give_up>>>);
static_assert(keel::oom::ladder<keel::oom::release_after<keel::steps{9}>, keel::oom::give_up>::configured.release_after == 9);
static_assert(keel::oom::ladder<keel::oom::release_after<keel::steps{9}>, keel::oom::give_up>::configured.count == 1);
static_assert(violations<recipe<keel::oom::ladder<keel::oom::release_after<keel::steps{9}>, keel::oom::release_after<keel::steps{8}>,
                                                  keel::oom::give_up>>>.has("D20"));
static_assert(violations<recipe<keel::oom::ladder<keel::oom::fused_attention, drop_the_cache, keel::oom::give_up>>>.has("O06"));

// What is nearly a policy is a stranger.
struct no_settings : keel::fills<keel::slot::clip> {};
struct no_slot {
  static constexpr keel::clip::settings configured{};
};
struct settings_of_another_slot : keel::fills<keel::slot::clip> {
  static constexpr keel::spike::settings configured{};
};
struct settings_as_a_function : keel::fills<keel::slot::clip> {
  static constexpr keel::clip::settings configured() { return {}; }
};
struct slot_as_a_number {
  static constexpr int in_slot = 3;
  static constexpr keel::clip::settings configured{};
};
struct slot_that_does_not_exist {
  using in_slot = no_slot;
  static constexpr keel::clip::settings configured{};
};
struct slot_as_an_object {
  static constexpr keel::slot::clip in_slot{};
  static constexpr keel::clip::settings configured{};
};
struct slot_as_a_pointer {
  using in_slot = keel::slot::clip*;
  static constexpr keel::clip::settings configured{};
};
struct settings_known_at_run_time : keel::fills<keel::slot::clip> {
  inline static keel::clip::settings configured{};
};
struct settings_per_object : keel::fills<keel::slot::clip> {
  keel::clip::settings configured{};
};
struct hidden_base : private keel::fills<keel::slot::clip> {
  static constexpr keel::clip::settings configured{};
};
template <class NearMiss>
constexpr bool is_only_a_stranger = violations<recipe<NearMiss>>.size() == 1 && violations<recipe<NearMiss>>.has("D00");
static_assert(is_only_a_stranger<no_settings>);
static_assert(is_only_a_stranger<no_slot>);
static_assert(is_only_a_stranger<settings_of_another_slot>);
static_assert(is_only_a_stranger<settings_as_a_function>);
static_assert(is_only_a_stranger<slot_as_a_number>);
static_assert(is_only_a_stranger<slot_that_does_not_exist>);
static_assert(is_only_a_stranger<slot_as_an_object>);
static_assert(is_only_a_stranger<slot_as_a_pointer>);
static_assert(is_only_a_stranger<settings_known_at_run_time>);
static_assert(is_only_a_stranger<settings_per_object>);
static_assert(is_only_a_stranger<hidden_base>);

// A policy with state says how the state is saved.
struct clip_without_state : keel::fills<keel::slot::clip> {
  static constexpr keel::clip::settings configured{keel::clip::kind::custom, 1.0};
};
struct clip_that_remembers : clip_without_state {
  struct state {
    double level = 0.0;
    void visit(auto& archive) { archive("level", level); }
  };
};
struct clip_that_forgets : clip_without_state {
  struct state {
    double level = 0.0;
  };
};
struct clip_that_saves_a_copy : clip_without_state {
  struct state {
    double level = 0.0;
    void visit(double& archive) { archive = level; }
  };
};
static_assert(!keel::stateful<clip_without_state> && keel::stateful<clip_that_remembers> && keel::stateful<clip_that_forgets>);
static_assert(valid<recipe<clip_without_state>> && valid<recipe<clip_that_remembers>>);
static_assert(violations<recipe<clip_that_forgets>>.size() == 1 && violations<recipe<clip_that_forgets>>.has("S05"));
static_assert(violations<recipe<clip_that_saves_a_copy>>.has("S05"));

// Options: their order is free, and two that set one thing differently do not pass.
static_assert(keel::loss_scale::dynamic<keel::loss_scale::growth<3.0>, keel::loss_scale::floor<2.0>>::configured ==
              keel::loss_scale::dynamic<keel::loss_scale::floor<2.0>, keel::loss_scale::growth<3.0>>::configured);
static_assert(keel::checkpoint::every<500_steps, keel::checkpoint::keep<3>, keel::checkpoint::keep<3>>::options_agree);
static_assert(!keel::checkpoint::every<500_steps, keel::checkpoint::keep<3>, keel::checkpoint::keep<4>>::options_agree);
static_assert(keel::checkpoint::every<10_min>::configured == keel::checkpoint::every<600_s>::configured);
static_assert(!(keel::checkpoint::every<600_steps>::configured == keel::checkpoint::every<600_s>::configured));

}  // namespace recipe_tests
