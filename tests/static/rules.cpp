// For every value rule: a configuration that breaks this rule and no other, and a neighbour of it that keeps all.
#include <keel/recipe.hpp>

using namespace keel::literals;

namespace {

using keel::check;
using keel::config;
using keel::recipe;
using keel::verdict;
using keel::violations;
namespace rule = keel::rule;

template <class Broken, class Kept>
struct recipes {
  static constexpr verdict broken = violations<Broken>;
  static constexpr verdict kept = violations<Kept>;
};

constexpr verdict on_cpu(keel::precision::settings precision, keel::loss_scale::settings loss_scale) {
  return check({.precision = precision, .loss_scale = loss_scale, .run = {.known = true, .half_kernels = false}});
}

constexpr verdict in_a_run_of(long long updates, keel::schedule::settings schedule) {
  return check({.schedule = schedule, .run = {.known = true, .updates = updates}});
}

/// A rule of the catalogue without an example does not compile.
template <class Rule>
struct example;

using saves = keel::checkpoint::every<500_steps>;
using fp16 = keel::precision::fp16;
using dynamic = keel::loss_scale::dynamic<>;

struct forgets : keel::fills<keel::slot::clip> {
  static constexpr keel::clip::settings configured{keel::clip::kind::custom, 1.0};
  struct state {
    double level = 0.0;
  };
};
struct remembers : keel::fills<keel::slot::clip> {
  static constexpr keel::clip::settings configured{keel::clip::kind::custom, 1.0};
  struct state {
    double level = 0.0;
    void visit(auto& archive) { archive("level", level); }
  };
};
struct half_the_batch {
  static constexpr keel::oom::rung_settings rung{.kind = keel::oom::rung_kind::custom, .keeps_effective_batch = false};
};

template <class... Rungs>
using ladder = recipe<keel::oom::ladder<Rungs...>>;

template <>
struct example<rule::D00> : recipes<recipe<int>, recipe<>> {};
template <>
struct example<rule::D01> : recipes<recipe<fp16, dynamic, keel::loss_scale::fixed<1024.0>>, recipe<fp16, dynamic>> {};
template <>
struct example<rule::D02> : recipes<recipe<keel::accumulate<4>, keel::accumulate<8>>, recipe<keel::accumulate<4>>> {};
template <>
struct example<rule::D03> : recipes<recipe<keel::nonfinite::raise, keel::nonfinite::skip<10>>, recipe<keel::nonfinite::raise>> {
};
template <>
struct example<rule::D04> : recipes<recipe<keel::spike::ignore, keel::spike::skip<>>, recipe<keel::spike::skip<>>> {};
template <>
struct example<rule::D05>
    : recipes<recipe<keel::schedule::constant, keel::schedule::cosine<>>, recipe<keel::schedule::cosine<>>> {};
template <>
struct example<rule::D06>
    : recipes<recipe<keel::recompute::none, keel::recompute::reentrant>, recipe<keel::recompute::reentrant>> {};
template <>
struct example<rule::D07> : recipes<recipe<keel::offload::none, keel::offload::optimizer>, recipe<keel::offload::optimizer>> {};
template <>
struct example<rule::D08> : recipes<recipe<keel::attention::math, keel::attention::fused>, recipe<keel::attention::fused>> {};
template <>
struct example<rule::D09>
    : recipes<recipe<keel::oom::raise, keel::oom::ladder<keel::oom::give_up>>, ladder<keel::oom::give_up>> {};
template <>
struct example<rule::D10> : recipes<recipe<keel::health::off, keel::health::sft>, recipe<keel::health::sft>> {};
template <>
struct example<rule::D11>
    : recipes<recipe<keel::determinism::off, keel::determinism::seeded<1>>, recipe<keel::determinism::seeded<1>>> {};
template <>
struct example<rule::D12>
    : recipes<recipe<keel::objective::grpo<8>, keel::objective::ebft<8>>, recipe<keel::objective::grpo<8>>> {};
template <>
struct example<rule::D13> : recipes<recipe<keel::ema<0.99>, keel::no_ema>, recipe<keel::ema<0.99>>> {};
template <>
struct example<rule::D14>
    : recipes<recipe<keel::model::all_trainable, keel::model::partly_frozen>, recipe<keel::model::partly_frozen>> {};
template <>
struct example<rule::D20>
    : recipes<recipe<keel::checkpoint::every<500_steps, keel::checkpoint::keep<2>, keel::checkpoint::keep<3>>>,
              recipe<keel::checkpoint::every<500_steps, keel::checkpoint::keep<3>, keel::checkpoint::keep<3>>>> {};

template <>
struct example<rule::P01> : recipes<recipe<fp16>, recipe<fp16, dynamic>> {};
template <>
struct example<rule::P02> : recipes<recipe<keel::precision::bf16, dynamic>, recipe<fp16, dynamic>> {};
template <>
struct example<rule::P03> : recipes<recipe<keel::precision::bf16, keel::precision::fp32>, recipe<keel::precision::bf16>> {};
template <>
struct example<rule::P08> : recipes<recipe<fp16, keel::loss_scale::fixed<0.0>>, recipe<fp16, keel::loss_scale::fixed<1.0>>> {};
template <>
struct example<rule::P09> : recipes<recipe<fp16, keel::loss_scale::dynamic<keel::loss_scale::growth<1.0>>>,
                                    recipe<fp16, keel::loss_scale::dynamic<keel::loss_scale::growth<1.5>>>> {};
template <>
struct example<rule::P10> : recipes<recipe<fp16, keel::loss_scale::dynamic<keel::loss_scale::floor<0.0>>>,
                                    recipe<fp16, keel::loss_scale::dynamic<keel::loss_scale::floor<0.5>>>> {};
template <>
struct example<rule::P14> {
  static constexpr verdict broken = on_cpu(fp16::configured, dynamic::configured);
  static constexpr verdict kept = on_cpu(keel::precision::bf16::configured, keel::loss_scale::none::configured);
};

template <>
struct example<rule::G07>
    : recipes<recipe<keel::clip::global_norm<1.0>, keel::clip::value<1.0>>, recipe<keel::clip::value<1.0>>> {};
template <>
struct example<rule::G11> : recipes<recipe<keel::clip::global_norm<0.0>>, recipe<keel::clip::global_norm<0.1>>> {};

template <>
struct example<rule::N01> : recipes<recipe<keel::shard::replicate, keel::nonfinite::skip<10, keel::nonfinite::rank_local>>,
                                    recipe<keel::shard::none, keel::nonfinite::skip<10, keel::nonfinite::rank_local>>> {};
template <>
struct example<rule::N06> : recipes<recipe<keel::nonfinite::skip<0>>, recipe<keel::nonfinite::skip<1>>> {};
template <>
struct example<rule::N09> : recipes<recipe<keel::nonfinite::rollback<10>>, recipe<keel::nonfinite::rollback<10>, saves>> {};
template <>
struct example<rule::N10> : recipes<recipe<saves, keel::nonfinite::rollback<10, keel::nonfinite::change_nothing>>,
                                    recipe<saves, keel::nonfinite::rollback<10, keel::nonfinite::reseed>>> {};
template <>
struct example<rule::N11> : recipes<recipe<saves, keel::nonfinite::rollback<10, keel::nonfinite::attempts<0>>>,
                                    recipe<saves, keel::nonfinite::rollback<10, keel::nonfinite::attempts<1>>>> {};
template <>
struct example<rule::N12>
    : recipes<recipe<saves, keel::nonfinite::rollback<1000>>, recipe<saves, keel::nonfinite::rollback<999>>> {};
template <>
struct example<rule::N27>
    : recipes<recipe<keel::spike::skip<keel::spike::window<1>>>, recipe<keel::spike::skip<keel::spike::window<2>>>> {};

template <>
struct example<rule::S01>
    : recipes<recipe<keel::checkpoint::every<500_steps, keel::checkpoint::asynchronous, keel::checkpoint::keep<1>>>,
              recipe<keel::checkpoint::every<500_steps, keel::checkpoint::asynchronous, keel::checkpoint::keep<2>>>> {};
template <>
struct example<rule::S05> : recipes<recipe<forgets>, recipe<remembers>> {};
template <>
struct example<rule::S14> : recipes<recipe<saves, keel::checkpoint::every<10_min>>, recipe<saves>> {};
template <>
struct example<rule::S24> : recipes<recipe<keel::checkpoint::every<0_steps>>, recipe<keel::checkpoint::every<1_steps>>> {};
template <>
struct example<rule::S25> : recipes<recipe<keel::checkpoint::young_daly<>>,
                                    recipe<keel::checkpoint::young_daly<keel::checkpoint::mean_time_between_failures<1_s>>>> {};

template <>
struct example<rule::B01> : recipes<recipe<keel::accumulate<4, keel::micro_batch<2>, keel::global_batch<9>>>,
                                    recipe<keel::accumulate<4, keel::micro_batch<2>, keel::global_batch<8>>>> {};
template <>
struct example<rule::B21> : recipes<recipe<keel::accumulate<0>>, recipe<keel::accumulate<1>>> {};
template <>
struct example<rule::B11> : recipes<recipe<keel::objective::grpo<1>>, recipe<keel::objective::grpo<2>>> {};

template <>
struct example<rule::A01> : recipes<recipe<keel::recompute::non_reentrant, keel::shard::zero<3>>,
                                    recipe<keel::recompute::non_reentrant, keel::shard::zero<2>>> {};
template <>
struct example<rule::A02> : recipes<recipe<keel::recompute::reentrant, keel::model::partly_frozen>,
                                    recipe<keel::recompute::non_reentrant, keel::model::partly_frozen>> {};
template <>
struct example<rule::A03> : recipes<recipe<keel::recompute::reentrant, keel::model::partly_frozen, keel::shard::zero<3>>,
                                    recipe<keel::recompute::none, keel::model::partly_frozen, keel::shard::zero<3>>> {};

template <>
struct example<rule::Z01> : recipes<recipe<keel::shard::zero<2>, keel::shard::replicate>, recipe<keel::shard::zero<2>>> {};

template <>
struct example<rule::L01>
    : recipes<recipe<keel::schedule::cosine<keel::schedule::warmup<10_steps>, keel::schedule::warmup_ratio<0.1>>>,
              recipe<keel::schedule::cosine<keel::schedule::warmup<10_steps>>>> {};
template <>
struct example<rule::L02>
    : recipes<recipe<keel::schedule::cosine<keel::schedule::warmup<100_steps>, keel::schedule::total<100_steps>>>,
              recipe<keel::schedule::cosine<keel::schedule::warmup<99_steps>, keel::schedule::total<100_steps>>>> {};
template <>
struct example<rule::L03> : recipes<recipe<keel::schedule::cosine<keel::schedule::min_ratio<1.1>>>,
                                    recipe<keel::schedule::cosine<keel::schedule::min_ratio<1.0>>>> {};
template <>
struct example<rule::L04> {
  static constexpr verdict broken = in_a_run_of(0, keel::schedule::cosine<>::configured);
  static constexpr verdict kept = in_a_run_of(1000, keel::schedule::cosine<>::configured);
};
template <>
struct example<rule::L11> : recipes<recipe<keel::schedule::cosine<keel::schedule::decay<10_steps>>>,
                                    recipe<keel::schedule::warmup_stable_decay<keel::schedule::decay<10_steps>>>> {};

template <>
struct example<rule::L12> : recipes<recipe<keel::schedule::constant_with<keel::schedule::min_ratio<0.1>>>,
                                    recipe<keel::schedule::linear<keel::schedule::min_ratio<0.1>>>> {};
template <>
struct example<rule::L13> : recipes<recipe<keel::schedule::warmup_stable_decay<>>,
                                    recipe<keel::schedule::warmup_stable_decay<keel::schedule::decay<10_steps>>>> {};
template <>
struct example<rule::L14> {
  static constexpr verdict broken = in_a_run_of(1000, keel::schedule::cosine<keel::schedule::total<100_steps>>::configured);
  static constexpr verdict kept =
      in_a_run_of(1000, keel::schedule::cosine<keel::schedule::total<100_steps>, keel::schedule::min_ratio<0.1>>::configured);
};

template <>
struct example<rule::M10> : recipes<recipe<keel::ema<1.0>>, recipe<keel::ema<0.999>>> {};

template <>
struct example<rule::O02>
    : recipes<ladder<half_the_batch, keel::oom::give_up>, ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
template <>
struct example<rule::O05>
    : recipes<ladder<keel::oom::halve_micro_batch>, ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
template <>
struct example<rule::O06> : recipes<ladder<keel::oom::fused_attention, keel::oom::halve_micro_batch, keel::oom::give_up>,
                                    ladder<keel::oom::halve_micro_batch, keel::oom::fused_attention, keel::oom::give_up>> {};
template <>
struct example<rule::O08> : recipes<ladder<keel::oom::offload_optimizer, keel::oom::offload_optimizer, keel::oom::give_up>,
                                    ladder<keel::oom::offload_optimizer, keel::oom::give_up>> {};
template <>
struct example<rule::O09>
    : recipes<recipe<keel::shard::zero<3>,
                     keel::oom::ladder<keel::oom::enable_recompute<keel::recompute::non_reentrant>, keel::oom::give_up>>,
              recipe<keel::shard::zero<3>,
                     keel::oom::ladder<keel::oom::enable_recompute<keel::recompute::reentrant>, keel::oom::give_up>>> {};

template <class Rule>
struct shown {
  static_assert(rule::value_rule<Rule>);
  static_assert(example<Rule>::broken.has(Rule::id));
  static_assert(example<Rule>::broken.size() == 1);
  static_assert(example<Rule>::kept.ok());
};
template <class Catalogue>
struct each_shown;
template <class... Rules>
struct each_shown<rule::list<Rules...>> : shown<Rules>... {};
template struct each_shown<rule::catalogue>;

// An id is compared whole.
static_assert(example<rule::A01>::broken.has("A01"));
static_assert(!example<rule::A01>::broken.has("A0") && !example<rule::A01>::broken.has("A011") &&
              !example<rule::A01>::broken.has(""));

// The other ways to break a rule that has several.
template <class Recipe>
constexpr bool breaks(char const* id) {
  return violations<Recipe>.has(id);
}
template <keel::loss_scale::option... Options>
using fp16_with = recipe<fp16, keel::loss_scale::dynamic<Options...>>;
static_assert(breaks<recipe<fp16, keel::loss_scale::fixed<-1.0>>>("P08"));
static_assert(breaks<recipe<fp16, keel::loss_scale::fixed<1e39>>>("P08"));
static_assert(breaks<fp16_with<keel::loss_scale::initial<0.0>>>("P08"));
static_assert(breaks<fp16_with<keel::loss_scale::backoff<1.0>>>("P09") &&
              breaks<fp16_with<keel::loss_scale::backoff<0.0>>>("P09"));
static_assert(breaks<fp16_with<keel::loss_scale::growth_interval<0>>>("P09"));
static_assert(breaks<fp16_with<keel::loss_scale::growth<1e39>>>("P09"));
static_assert(breaks<fp16_with<keel::loss_scale::initial<1.0>, keel::loss_scale::floor<2.0>>>("P09") &&
              !breaks<fp16_with<keel::loss_scale::initial<2.0>, keel::loss_scale::floor<2.0>>>("P09"));
static_assert(breaks<fp16_with<keel::loss_scale::at_floor_continue>>("P10"));
static_assert(breaks<recipe<keel::clip::value<-1.0>>>("G11") && breaks<recipe<keel::clip::adaptive<0.0>>>("G11"));
static_assert(breaks<recipe<keel::spike::rollback<>>>("N09"));
static_assert(breaks<recipe<keel::spike::rollback<>, keel::checkpoint::every<64_steps>>>("N12"));
static_assert(!breaks<recipe<keel::spike::rollback<>, keel::checkpoint::every<65_steps>>>("N12"));
static_assert(breaks<recipe<keel::spike::skip<keel::spike::zscore<0.0>>>>("N27") &&
              breaks<recipe<keel::spike::skip<keel::spike::zscore<1.79e308>>>>("N27"));
static_assert(breaks<recipe<keel::spike::rollback<keel::spike::zscore<-1.0>>, saves>>("N27"));
static_assert(breaks<recipe<keel::checkpoint::young_daly<keel::checkpoint::keep<0>>>>("S24"));
static_assert(breaks<recipe<keel::checkpoint::young_daly<keel::checkpoint::mean_time_between_failures<0_s>>>>("S25"));
static_assert(breaks<recipe<keel::accumulate<1, keel::micro_batch<-1>>>>("B21"));
static_assert(breaks<recipe<keel::objective::ebft<0>>>("B11") && !breaks<recipe<keel::objective::supervised>>("B11"));
static_assert(breaks<recipe<keel::recompute::non_reentrant, keel::model::partly_frozen, keel::shard::zero<3>>>("A03"));
static_assert(breaks<recipe<keel::schedule::cosine<keel::schedule::min_ratio<0.1>, keel::schedule::min_lr<1e-5>>>>("L03"));
static_assert(breaks<recipe<keel::schedule::cosine<keel::schedule::warmup_ratio<1.0>>>>("L03"));
static_assert(
    breaks<recipe<keel::schedule::warmup_stable_decay<keel::schedule::decay<60_steps>, keel::schedule::warmup<40_steps>,
                                                      keel::schedule::total<100_steps>>>>("L02"));
static_assert(breaks<recipe<keel::schedule::constant_with<keel::schedule::decay<10_steps>>>>("L11") &&
              breaks<recipe<keel::schedule::linear<keel::schedule::decay<10_steps>>>>("L11"));
static_assert(breaks<recipe<keel::schedule::constant_with<keel::schedule::min_lr<1e-5>>>>("L12"));
static_assert(breaks<recipe<keel::schedule::warmup_stable_decay<keel::schedule::warmup_ratio<0.9>, keel::schedule::decay<20_steps>,
                                                                keel::schedule::total<100_steps>>>>("L02"));
static_assert(breaks<recipe<keel::ema<-0.1>>>("M10") && breaks<recipe<keel::ema<1.1>>>("M10"));
static_assert(breaks<ladder<>>("O05") && breaks<ladder<keel::oom::give_up, keel::oom::halve_micro_batch>>("O05"));
static_assert(
    breaks<recipe<keel::offload::optimizer, keel::oom::ladder<keel::oom::offload_optimizer, keel::oom::give_up>>>("O08"));
static_assert(breaks<ladder<keel::oom::shorten_sequence<512>, keel::oom::shorten_sequence<512>, keel::oom::give_up>>("O08"));
static_assert(!breaks<ladder<keel::oom::shorten_sequence<512>, keel::oom::shorten_sequence<256>, keel::oom::give_up>>("O08"));
static_assert(
    breaks<recipe<keel::recompute::reentrant, keel::oom::ladder<keel::oom::quantize_base, keel::oom::give_up>>>("O09"));

// The facts of a run. Nothing that only a run can tell is held against a recipe.
static_assert(violations<recipe<fp16, dynamic>>.ok());
static_assert(example<rule::P14>::broken.has("P14") && example<rule::L04>::broken.has("L04"));
static_assert(check({.schedule = keel::schedule::cosine<>::configured}).ok());
static_assert(in_a_run_of(0, keel::schedule::cosine<keel::schedule::total<10_steps>>::configured).ok());
static_assert(in_a_run_of(0, keel::schedule::constant::configured).ok());
static_assert(in_a_run_of(0, keel::schedule::constant_with<keel::schedule::warmup_ratio<0.1>>::configured).has("L04"));
static_assert(in_a_run_of(100, keel::schedule::cosine<keel::schedule::warmup<100_steps>>::configured).has("L02"));
static_assert(in_a_run_of(101, keel::schedule::cosine<keel::schedule::warmup<100_steps>>::configured).ok());

constexpr verdict alone_in_a_world_of(long long ranks) {
  return check({.nonfinite = keel::nonfinite::skip<10, keel::nonfinite::rank_local>::configured,
                .run = {.known = true, .world_size = ranks}});
}
static_assert(alone_in_a_world_of(1).ok());
static_assert(alone_in_a_world_of(2).size() == 1 && alone_in_a_world_of(2).has("N01"));

constexpr verdict ending_at_1e_4_from(double learning_rate) {
  return check({.schedule = keel::schedule::cosine<keel::schedule::min_lr<1e-4>>::configured,
                .run = {.known = true, .updates = 1000, .learning_rate = learning_rate}});
}
static_assert(ending_at_1e_4_from(1e-4).ok());
static_assert(ending_at_1e_4_from(9e-5).size() == 1 && ending_at_1e_4_from(9e-5).has("L03"));

constexpr verdict sixteen_rows_over(long long ranks) {
  return check({.accumulate = keel::accumulate<4, keel::micro_batch<2>, keel::global_batch<16>>::configured,
                .shard = keel::shard::replicate::configured,
                .run = {.known = true, .world_size = ranks}});
}
static_assert(
    violations<recipe<keel::accumulate<4, keel::micro_batch<2>, keel::global_batch<16>>, keel::shard::replicate>>.ok());
static_assert(sixteen_rows_over(2).ok());
static_assert(sixteen_rows_over(1).size() == 1 && sixteen_rows_over(1).has("B01") && sixteen_rows_over(4).has("B01"));

// The recipe that keel shows first.
struct pretrain
    : recipe<keel::precision::bf16, keel::accumulate<4>, keel::clip::global_norm<1.0>, keel::nonfinite::rollback<10>,
             keel::checkpoint::every<500_steps>, keel::recompute::reentrant, keel::shard::zero<3>,
             keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::offload_optimizer, keel::oom::give_up>> {};
static_assert(keel::valid<pretrain>);
template <class Recipe>
constexpr verdict in_a_world_of(long long ranks) {
  config told = keel::config_of<Recipe>;
  told.run = {.known = true, .world_size = ranks, .updates = 10'000, .learning_rate = 3e-4, .half_kernels = false};
  return check(told);
}
static_assert(in_a_world_of<pretrain>(1).ok() && in_a_world_of<pretrain>(64).ok());

}  // namespace
