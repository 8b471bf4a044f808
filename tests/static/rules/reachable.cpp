// What a run can come to: the rungs of its ladder, a rollback that lowers the learning rate, a loss scale at its floor.
#include <iterator>
#include <utility>

#include "example.hpp"

namespace judged {

using namespace keel::literals;
namespace data = keel::data;
namespace loss_scale = keel::loss_scale;
namespace model = keel::model;
namespace nonfinite = keel::nonfinite;
namespace objective = keel::objective;
namespace optimizer = keel::optimizer;
namespace shard = keel::shard;
using keel::accumulate;
using keel::global_batch;
using keel::micro_batch;
using keel::oom::enable_recompute;
using keel::oom::fused_attention;
using keel::oom::give_up;
using keel::oom::halve_micro_batch;
using keel::oom::offload_optimizer;
using keel::oom::quantize_base;
using keel::oom::shorten_sequence;
using model::partly_frozen;
using reentrant = keel::recompute::reentrant;
using non_reentrant = keel::recompute::non_reentrant;
using keel::precision::fp16;

// Each rule that a rung can break, by the number of the rung, and a neighbour of the ladder.
using ragged = data::is<data::ragged>;
static_assert(reaches<rule::B06>(of<ragged, ladder<halve_micro_batch, give_up>>, origin::rung, 1));
static_assert(reaches<rule::B06>(of<ragged, ladder<offload_optimizer, halve_micro_batch, give_up>>, origin::rung, 2));
static_assert(keeps(of<ragged, ladder<offload_optimizer, fused_attention, give_up>>));
using bfloat16 = model::has<model::bfloat16_parameters>;
static_assert(reaches<rule::P06>(of<bfloat16, ladder<offload_optimizer, halve_micro_batch, give_up>>, origin::rung, 2));
static_assert(keeps(of<bfloat16, ladder<offload_optimizer, fused_attention, give_up>>));
template <class Mode>
using turns_on = ladder<halve_micro_batch, offload_optimizer, enable_recompute<Mode>, give_up>;
static_assert(reaches<rule::A01>(of<shard::zero<3>, turns_on<non_reentrant>>, origin::rung, 3));
static_assert(keeps(of<shard::zero<3>, turns_on<reentrant>>) && keeps(of<shard::zero<2>, turns_on<non_reentrant>>));
static_assert(reaches<rule::A02>(of<partly_frozen, turns_on<reentrant>>, origin::rung, 3));
static_assert(keeps(of<partly_frozen, turns_on<non_reentrant>>) && keeps(of<turns_on<reentrant>>));
static_assert(reaches<rule::A03>(of<partly_frozen, shard::zero<3>, turns_on<reentrant>>, origin::rung, 3));
static_assert(keeps(of<partly_frozen, shard::zero<2>, turns_on<non_reentrant>>));
using inner_gradients = model::has<model::inner_gradients>;
static_assert(reaches<rule::A04>(of<inner_gradients, turns_on<reentrant>>, origin::rung, 3));
static_assert(keeps(of<inner_gradients, turns_on<non_reentrant>>));
using routing = model::has<model::routing>;
static_assert(reaches<rule::A16>(of<routing, turns_on<non_reentrant>>, origin::rung, 3));
static_assert(keeps(of<routing, ladder<halve_micro_batch, offload_optimizer, give_up>>));
using batch_norm = model::has<model::batch_norm>;
static_assert(reaches<rule::A17>(of<batch_norm, ladder<offload_optimizer, enable_recompute<reentrant>, give_up>>, origin::rung,
                                 2));
static_assert(keeps(of<batch_norm, ladder<offload_optimizer, give_up>>));
using device_only = optimizer::is<optimizer::device_only>;
static_assert(reaches<rule::Z02>(of<device_only, ladder<halve_micro_batch, offload_optimizer, give_up>>, origin::rung, 2));
static_assert(keeps(of<device_only, ladder<halve_micro_batch, fused_attention, give_up>>));
using on_host = optimizer::is<optimizer::state_on_host>;
static_assert(reaches<rule::Z23>(of<on_host, ladder<halve_micro_batch, offload_optimizer, give_up>>, origin::rung, 2));
static_assert(keeps(of<on_host, ladder<halve_micro_batch, fused_attention, give_up>>));
using reduces_once = accumulate<1, keel::reduce_once>;
static_assert(reaches<rule::B03>(of<reduces_once, shard::zero<2>, ladder<offload_optimizer, halve_micro_batch, give_up>>,
                                 origin::rung, 2));
static_assert(keeps(of<reduces_once, shard::zero<1>, ladder<offload_optimizer, halve_micro_batch, give_up>>));

// Rungs add up: the one that completes the combination is named. A base that is quantised is frozen.
constexpr config will_freeze(config c) {
  c.model = {.adapters = true};
  return c;
}
using then_freezes = ladder<enable_recompute<reentrant>, fused_attention, quantize_base, give_up>;
static_assert(reaches<rule::A02>(will_freeze(of<then_freezes>), origin::rung, 3));
static_assert(reaches<rule::A02>(will_freeze(of<reentrant, ladder<quantize_base, give_up>>), origin::rung, 1));
static_assert(reaches<rule::A03>(will_freeze(of<shard::zero<3>, then_freezes>), origin::rung, 3));
static_assert(keeps(will_freeze(of<ladder<enable_recompute<reentrant>, fused_attention, give_up>>)));
// Two rules that one rung breaks are two, in the catalogue's order.
constexpr verdict both = check(of<partly_frozen, shard::zero<3>, turns_on<non_reentrant>>);
static_assert(both.size() == 2 && both.begin()[0].id == rule::A01::id && both.begin()[1].id == rule::A03::id);
static_assert(both.begin()[0].number == 3 && both.begin()[1].number == 3);
// Two rungs that break two rules each have their own number.
constexpr verdict apart = check(of<ragged, device_only, ladder<offload_optimizer, halve_micro_batch, give_up>>);
static_assert(apart.size() == 2 && apart.begin()[0].id == rule::Z02::id && apart.begin()[0].number == 1);
static_assert(apart.begin()[1].id == rule::B06::id && apart.begin()[1].number == 2);

// A rule is asked wherever it stands in a list.
static_assert(keel::detail::verdict_on<rule::list<rule::B06>>(of<ragged, ladder<halve_micro_batch, give_up>>).has("B06"));

// What the recipe breaks itself is said of the recipe, and once.
static_assert(breaks<rule::B06>(of<accumulate<2>, ragged, ladder<halve_micro_batch, give_up>>));
static_assert(breaks<rule::A16>(of<reentrant, routing, ladder<halve_micro_batch, offload_optimizer, give_up>>));
static_assert(breaks<rule::Z02>(of<keel::offload::optimizer, device_only, ladder<halve_micro_batch, give_up>>));
static_assert(breaks<rule::A02, rule::O08>(of<reentrant, partly_frozen, ladder<enable_recompute<reentrant>, give_up>>));

// What a rung does.
constexpr config taken(config c, keel::oom::rung_settings const& rung) {
  keel::take_rung(c, rung);
  return c;
}
static_assert([] {
  config const before = of<accumulate<4, micro_batch<7>, global_batch<28>>, reentrant, model::has<model::dropout>>;
  config halved = before;
  halved.accumulate = {.count = 8, .micro_batch = 3, .global_batch = 0};
  config recomputing = before;
  recomputing.recompute.kind = keel::recompute_kind::non_reentrant;
  config offloading = before;
  offloading.offload.kind = keel::offload::kind::optimizer;
  config fused = before;
  fused.attention.kind = keel::attention_kind::fused;
  config frozen = before;
  frozen.model.partly_frozen = true;
  return taken(before, halve_micro_batch::rung) == halved &&
         taken(before, enable_recompute<non_reentrant>::rung) == recomputing &&
         taken(before, offload_optimizer::rung) == offloading && taken(before, fused_attention::rung) == fused &&
         taken(before, quantize_base::rung) == frozen && taken(before, shorten_sequence<512>::rung) == before &&
         taken(before, give_up::rung) == before && taken(before, {.kind = keel::oom::rung_kind::custom}) == before &&
         taken(before, {.kind = keel::oom::rung_kind::none}) == before;
}());

// Halving goes down to one row, and of groups to the last whole number of them.
template <long long... Rows>
constexpr bool halves_to(config const& c) {
  constexpr int count = sizeof...(Rows);
  constexpr long long expected[count + 1] = {Rows...};
  int seen = 0;
  bool same = true;
  config halved = c;
  halved.accumulate.global_batch = 0;
  keel::for_each_reachable(c, [&](config const& reached, origin from, int number) {
    if (number != 1) return true;
    halved.accumulate.count *= 2;
    halved.accumulate.micro_batch = seen < count ? expected[seen] : -1;
    halved.oom = reached.oom;
    same = same && from == origin::rung && reached == halved && reached.oom.count <= c.oom.count;
    ++seen;
    return true;
  });
  return same && seen == count;
}
using halving = ladder<halve_micro_batch, give_up>;
template <long long Rows>
using rows = accumulate<3, micro_batch<Rows>>;
static_assert(halves_to<8, 4, 2, 1>(of<rows<16>, halving>) && halves_to<1>(of<rows<2>, halving>));
static_assert(halves_to<2, 1>(of<rows<5>, halving>) && halves_to<1>(of<rows<3>, halving>));
static_assert(halves_to<0>(of<accumulate<3>, halving>));
static_assert(halves_to<16, 8, 4>(of<rows<32>, objective::grpo<4>, halving>) &&
              halves_to<4>(of<rows<8>, objective::ebft<4>, halving>));
static_assert(halves_to<>(of<rows<24>, objective::grpo<8>, halving>) && halves_to<>(of<rows<1>, halving>) &&
              halves_to<>(of<rows<-8>, halving>));
static_assert(halves_to<12>(of<rows<24>, objective::grpo<4>, halving>) &&
              halves_to<6>(of<rows<12>, objective::ebft<2>, halving>));
static_assert(halves_to<4, 2, 1>(of<rows<8>, objective::grpo<1>, halving>));
static_assert(halves_to<4, 2, 1>({.accumulate = {.micro_batch = 8}, .oom = halving::configured, .objective = {.group = 4}}));
// Of data that keeps its groups together by itself half is no number that is known, and stands for all.
using grouped = data::is<data::grouped>;
static_assert(halves_to<0>(of<rows<24>, objective::grpo<8>, grouped, halving>) &&
              halves_to<0>(of<rows<8>, objective::ebft<8>, grouped, halving>));
static_assert(halves_to<0>(of<rows<16>, grouped, halving>) && halves_to<>(of<rows<1>, grouped, halving>) &&
              halves_to<0>(of<accumulate<3>, grouped, halving>));
// Who has taken a rung has it no longer ahead, and whoever has one row has nothing left to halve.
static_assert([] {
  bool gone = true;
  keel::for_each_reachable(of<rows<8>, ladder<halve_micro_batch, offload_optimizer, give_up>>, [&](config const& reached, origin, int) {
    bool const halves = keel::oom::has_rung(reached.oom, keel::oom::rung_kind::halve_micro_batch);
    bool const offloads = keel::oom::has_rung(reached.oom, keel::oom::rung_kind::offload_optimizer);
    gone = gone && halves == (reached.accumulate.micro_batch > 1) &&
           offloads == (reached.offload.kind == keel::offload::kind::none);
    return true;
  });
  return gone;
}());
// A count that cannot double stays.
static_assert([] {
  config before = of<rows<4>>;
  before.accumulate.count = (1LL << 62) - 1;
  config const doubled = taken(before, halve_micro_batch::rung);
  config const stayed = taken(doubled, halve_micro_batch::rung);
  before.accumulate.count = 1LL << 62;
  return doubled.accumulate.count == most - 1 && stayed.accumulate.count == most - 1 && stayed.accumulate.micro_batch == 1 &&
         taken(before, halve_micro_batch::rung).accumulate.count == 1LL << 62;
}());
static_assert(keeps(of<accumulate<most, micro_batch<most>>, halving>));
// An update keeps its rows though no product of the sizes is left, so halving breaks neither the product nor the groups.
static_assert(keeps(of<accumulate<2, micro_batch<5>, global_batch<10>>, halving>));
static_assert(keeps(of<accumulate<2, micro_batch<24>, global_batch<48>>, objective::grpo<4>, halving>));
static_assert(keeps(in_run(of<accumulate<2, micro_batch<5>, global_batch<20>>, shard::replicate, halving>, {.world_size = 2})));

// A rollback halves the learning rate each time, and 8e-4 lies three halvings above 1e-4.
template <long long Times, class Change = nonfinite::lower_lr>
inline constexpr config const& rolling_back =
    of<keel::checkpoint::every<500_steps>, keel::schedule::cosine<keel::schedule::min_lr<1e-4>>,
       nonfinite::rollback<10, Change, nonfinite::attempts<Times>>>;
constexpr config from_rate(config const& c, double learning_rate) {
  return in_run(c, {.updates = 1000, .learning_rate = learning_rate});
}
static_assert(keeps(from_rate(rolling_back<3>, 8e-4)));
static_assert(reaches<rule::L03>(from_rate(rolling_back<4>, 8e-4), origin::rollback));
static_assert(keeps(from_rate(rolling_back<1>, 2e-4)) &&
              reaches<rule::L03>(from_rate(rolling_back<1>, below(2e-4)), origin::rollback));
static_assert(keeps(from_rate(rolling_back<4, nonfinite::reseed>, 8e-4)));
static_assert(keeps(from_rate(rolling_back<4, nonfinite::skip_data>, 8e-4)));
static_assert(breaks<rule::P20>(from_rate(
    of<keel::schedule::cosine<keel::schedule::min_lr<1e-4>>, nonfinite::skip<10, nonfinite::lower_lr, nonfinite::attempts<4>>>,
    8e-4)));
static_assert(breaks<rule::L03>(from_rate(rolling_back<4>, below(1e-4))));
static_assert(keeps(rolling_back<4>));
// However many times it may go back, the answer comes.
static_assert(reaches<rule::L03>(from_rate(rolling_back<9'000'000'000'000'000'000>, 1.0), origin::rollback));

// The dynamic loss scale at its floor.
template <double Scale>
using down_to = loss_scale::dynamic<loss_scale::floor<Scale>>;
static_assert(reaches<rule::P08>(of<fp16, down_to<below(1.2e-38)>>, origin::floor) && keeps(of<fp16, down_to<1.2e-38>>));
static_assert(breaks<rule::P10>(of<fp16, down_to<0.0>>) && breaks<rule::P10>(of<fp16, down_to<-1.0>>));
static_assert(breaks<rule::P08>(of<fp16, loss_scale::dynamic<loss_scale::initial<1e-39>, loss_scale::floor<1e-39>>>));
static_assert(keeps({.precision = fp16::configured, .loss_scale = {.kind = loss_scale::kind::fixed, .floor = 1e-39}}));

// A rule of keel's is asked where it has words, and nowhere else.
namespace {

template <int Where>
struct scale_below_64 {
  static constexpr char const* id = "Q01";
  static constexpr char const* text = "[Q01] a scale is 64 or more. Fix: keel::loss_scale::floor<64.0>.";
  static constexpr int has_words_for = Where;
  static constexpr bool broken(config const& c) { return c.loss_scale.initial < 64.0; }
};
template <int Where>
constexpr verdict asked = keel::detail::verdict_on<rule::list<scale_below_64<Where>>>(of<fp16, down_to<below(64.0)>>);

}  // namespace
static_assert(asked<1 << static_cast<int>(origin::floor)>.size() == 1);
static_assert(asked<0>.ok() && asked<1 << static_cast<int>(origin::rung) | 1 << static_cast<int>(origin::rollback)>.ok());

// A walk ends where its visitor says so.
constexpr int visits_until_told(config const& c) {
  int visits = 0;
  keel::for_each_reachable(c, [&](config const&, origin, int) {
    ++visits;
    return false;
  });
  return visits;
}
static_assert(visits_until_told(of<ladder<halve_micro_batch, give_up>, rows<16>>) == 1);
static_assert(visits_until_told(of<ladder<offload_optimizer, give_up>>) == 1 && visits_until_told(rolling_back<4>) == 1);
static_assert(visits_until_told(of<fp16, down_to<1.0>>) == 1 && visits_until_told(of<>) == 0);

// All three at once.
constexpr config three_ways =
    from_rate(of<fp16, down_to<1e-39>, ragged, keel::checkpoint::every<500_steps>, ladder<halve_micro_batch, give_up>,
                 keel::schedule::cosine<keel::schedule::min_lr<1e-4>>,
                 nonfinite::rollback<10, nonfinite::lower_lr, nonfinite::attempts<1>>>,
              1e-4);
constexpr verdict found_three_ways = check(three_ways);
static_assert(found_three_ways.size() == 3);
static_assert(found_three_ways.begin()[0].id == rule::B06::id && found_three_ways.begin()[0].from == origin::rung &&
              found_three_ways.begin()[0].number == 1);
static_assert(found_three_ways.begin()[1].id == rule::L03::id && found_three_ways.begin()[1].from == origin::rollback &&
              found_three_ways.begin()[1].number == 0);
static_assert(found_three_ways.begin()[2].id == rule::P08::id && found_three_ways.begin()[2].from == origin::floor &&
              found_three_ways.begin()[2].number == 0);

// A rung that would free nothing is passed over, and a rate that was lowered stays so: a rule of the user's own is asked about
// every choice of rungs, before and after.
namespace {

template <int Which>
struct own_rule {
  static constexpr char const* id = "Q01";
  static constexpr char const* text = "[Q01] this cluster knows better. Fix: keel::oom::raise.";
  static constexpr bool broken(config const& c) {
    bool const recomputes = c.recompute.kind != keel::recompute_kind::none;
    bool const offloads = c.offload.kind == keel::offload::kind::optimizer;
    bool const fused = c.attention.kind == keel::attention_kind::fused;
    switch (Which) {
      case 0:  // the second rung without the first
        return offloads && !recomputes;
      case 1:  // the first and the third
        return recomputes && fused && !offloads;
      case 2:  // a halved micro-batch and only the last of the others
        return c.accumulate.micro_batch == 2 && fused && !offloads && !recomputes;
      case 3:  // a rung at a lowered rate
        return offloads && c.run.learning_rate < 1e-3 && c.run.known;
      case 4:  // a halved micro-batch with the scale at its floor
        return c.accumulate.micro_batch == 1 && c.loss_scale.initial == 1.0;
      case 5:  // a lowered rate with the scale at its floor
        return c.run.known && c.run.learning_rate < 1e-3 && c.loss_scale.initial == 1.0;
      default:  // the ladder itself is there, wherever the run stands
        return c.oom.kind == keel::oom::kind::raise;
    }
  }
};

template <int Which>
using combining =
    recipe<own_rule<Which>, fp16, loss_scale::dynamic<>, rows<8>, keel::checkpoint::every<500_steps>,
           nonfinite::rollback<10, nonfinite::lower_lr>,
           ladder<halve_micro_batch, enable_recompute<non_reentrant>, offload_optimizer, fused_attention, give_up>>;
template <int Which>
constexpr verdict combined =
    keel::check_as<combining<Which>>(in_run(keel::config_of<combining<Which>>, {.updates = 1000, .learning_rate = 1e-3}));
template <int Which>
constexpr bool found_at(origin from, int number) {
  verdict const& found = combined<Which>;
  return found.size() == 1 && found.has("Q01") && found.begin()->from == from && found.begin()->number == number;
}

}  // namespace
static_assert(found_at<0>(origin::rung, 3) && found_at<1>(origin::rung, 4) && found_at<2>(origin::rung, 4));
static_assert(found_at<3>(origin::rung, 3) && found_at<4>(origin::rung, 1) && found_at<5>(origin::floor, 0));
static_assert(combined<6>.ok());

// A run goes these ways one after another, and what it then stands in breaks no rule that has words for one of these ways and
// that keel has not named.
using table = keel::detail::rule_table<keel::detail::judged_rules>;

template <class Visit>
constexpr void visit_lowered(config c, Visit const& visit) {
  visit(c);
  if (c.nonfinite.kind != nonfinite::kind::rollback || c.nonfinite.change != nonfinite::change::lower_lr) return;
  for (long long i = 0; i < c.nonfinite.attempts; ++i) {
    c.run.learning_rate *= 0.5;
    visit(c);
  }
}
template <class Visit>
constexpr void visit_scaled(config c, Visit const& visit) {
  visit_lowered(c, visit);
  if (c.loss_scale.kind != loss_scale::kind::dynamic || !(c.loss_scale.floor > 0.0)) return;
  c.loss_scale.initial = c.loss_scale.floor;
  visit_lowered(c, visit);
}
template <class Visit>
constexpr void visit_all_ways(config const& c, Visit const& visit) {
  visit_scaled(c, visit);
  config reached = c;
  reached.oom = keel::oom::settings{};
  for (int i = 0; i < c.oom.count; ++i) {
    bool const halves = c.oom.rungs[i].kind == keel::oom::rung_kind::halve_micro_batch && c.accumulate.micro_batch > 0;
    while (!halves || keel::detail::can_halve(reached)) {
      keel::take_rung(reached, c.oom.rungs[i]);
      visit_scaled(reached, visit);
      if (!halves) break;
    }
  }
}
constexpr bool names_all_that_is_reached(config const& c) {
  verdict const named = check(c);
  bool all = true;
  visit_all_ways(c, [&](config const& reached) {
    for (auto const& entry : table::entries) {
      if (entry.reached != 0 && entry.broken(reached)) all = all && named.has(entry.id);
    }
  });
  return all;
}
/// Of a recipe that keeps all rules, a rule without words for a way is broken nowhere on it.
constexpr bool needs_no_more_words(config const& c) {
  bool none = true;
  visit_all_ways(c, [&](config const& reached) {
    for (auto const& entry : table::entries) {
      none = none && (entry.reached != 0 || !entry.broken(reached));
    }
  });
  return none;
}

using whole_ladder = ladder<halve_micro_batch, enable_recompute<reentrant>, offload_optimizer, fused_attention, quantize_base,
                            shorten_sequence<512>, give_up>;
template <class... Policies>
constexpr config sound_on_all_ways =
    from_rate(of<fp16, down_to<1.0>, keel::checkpoint::every<500_steps>, keel::schedule::cosine<keel::schedule::min_lr<1e-6>>,
                 nonfinite::rollback<10, nonfinite::lower_lr, nonfinite::attempts<2>>, Policies...>,
              4e-6);
constexpr config walked[] = {
    three_ways,
    will_freeze(three_ways),
    of<>,
    of<halving>,
    of<ragged, halving>,
    of<ragged, device_only, ladder<offload_optimizer, halve_micro_batch, give_up>>,
    of<partly_frozen, shard::zero<3>, turns_on<non_reentrant>>,
    of<accumulate<2>, ragged, bfloat16, inner_gradients, whole_ladder>,
    of<routing, on_host, whole_ladder>,
    of<model::has<model::batch_norm, model::routing, model::inner_gradients, model::bfloat16_parameters>, shard::zero<3>,
       ragged, optimizer::is<optimizer::device_only, optimizer::state_on_host>, whole_ladder>,
    of<reduces_once, shard::zero<2>, whole_ladder>,
    will_freeze(of<then_freezes>),
    will_freeze(of<shard::zero<3>, then_freezes, rows<24>, objective::grpo<4>>),
    from_rate(rolling_back<4>, 8e-4),
    from_rate(of<fp16, down_to<1e-39>, ragged, keel::checkpoint::every<500_steps>, whole_ladder,
                 nonfinite::rollback<10, nonfinite::lower_lr>, keel::schedule::cosine<keel::schedule::min_lr<1e-4>>>,
              2e-4),
};
// One configuration to an evaluation, so that none comes near a compiler's limit of steps.
template <int... Index>
constexpr bool each_is_named(std::integer_sequence<int, Index...>) {
  return (std::bool_constant<names_all_that_is_reached(walked[Index])>::value && ...);
}
static_assert(each_is_named(std::make_integer_sequence<int, std::size(walked)>{}));

constexpr config sound[] = {
    of<>,
    sound_on_all_ways<>,
    sound_on_all_ways<halving, rows<7>>,
    sound_on_all_ways<ladder<halve_micro_batch, enable_recompute<reentrant>, offload_optimizer, give_up>,
                      model::has<model::dropout>, accumulate<2, micro_batch<12>, global_batch<24>>>,
    sound_on_all_ways<ladder<halve_micro_batch, enable_recompute<non_reentrant>, offload_optimizer, fused_attention,
                             quantize_base, shorten_sequence<512>, shorten_sequence<256>, give_up>,
                      model::has<model::adapters>, shard::zero<2>, accumulate<4, micro_batch<32>, global_batch<128>>,
                      objective::grpo<4>, keel::ema<0.99>, keel::clip::global_norm<1.0>>,
    sound_on_all_ways<turns_on<reentrant>, shard::zero<3>, data::is<data::ragged, data::token_weighted, data::endless>,
                      rows<64>>,
};
template <int... Index>
constexpr bool each_is_sound(std::integer_sequence<int, Index...>) {
  return (std::bool_constant < keeps(sound[Index]) && names_all_that_is_reached(sound[Index]) > ::value && ...) &&
         (std::bool_constant<needs_no_more_words(sound[Index])>::value && ...);
}
static_assert(each_is_sound(std::make_integer_sequence<int, std::size(sound)>{}));

}  // namespace judged
