// keel::accept (D22, D23, D24), and rules of the user's own.
#include <keel/rule/not_implemented.hpp>

#include "example.hpp"

namespace judged {

using namespace keel::literals;
namespace data = keel::data;
namespace model = keel::model;
namespace oom = keel::oom;
namespace optimizer = keel::optimizer;
using keel::accept;
using keel::accumulate;
using keel::check_as;
using keel::config_of;
using keel::micro_batch;
using ragged = data::is<data::ragged>;
using halving = ladder<oom::halve_micro_batch, oom::give_up>;
using non_reentrant = keel::recompute::non_reentrant;

/// The verdict of the recipe with these entries, by keel's rules and its own, once its trainer is built.
template <class... Entries>
constexpr verdict built(keel::run_facts facts = {}) {
  return check_as<recipe<Entries...>>(in_run(of<Entries...>, facts));
}
constexpr bool holds_only(verdict const& found, char const* id, origin from = origin::recipe, int number = 0) {
  return found.size() == 1 && found.has(id) && found.begin()->from == from && found.begin()->number == number;
}

template <>
struct example<rule::D22> : recipes<recipe<accumulate<2>, accept<"B60">>, recipe<accumulate<2>, accept<"B06">>> {};
static_assert(breaks<rule::D22>(of<accumulate<2>, accept<"B06">, accept<"B60">, accept<"B61">>));
// Of an id that is not keel's only the recipe can say whether it has such a rule: by keel's rules alone it is passed over.
template <keel::rule_id Id>
constexpr bool is_of_another = !rule::is_id_of_keel(Id) && keeps(of<accumulate<2>, accept<Id>>) &&
                               holds_only(violations<recipe<accumulate<2>, accept<Id>>>, "D22") &&
                               holds_only(check_as<recipe<>>(of<accumulate<2>, accept<Id>>), "D22");
static_assert(is_of_another<""> && is_of_another<"B"> && is_of_another<"B0"> && is_of_another<"BB0"> && is_of_another<"Q06">);
static_assert(is_of_another<"xB06"> && is_of_another<"QB06"> && is_of_another<"xxxxxxxxB06"> && is_of_another<"B060">);
static_assert(rule::is_id_of_keel("B06") && rule::is_id_of_keel("A99") && rule::is_id_of_keel("Z00"));
// Those of keel beside it count, whatever the order.
static_assert(keeps(of<accumulate<2>, ragged, accept<"Q01">, accept<"B06">, accept<"XY1">>));
static_assert(breaks<rule::B06>(of<accumulate<2>, ragged, accept<"Q01">>));
static_assert(breaks<rule::D22>(of<accumulate<2>, accept<"Q01">, accept<"B60">>) &&
              breaks<rule::D23>(of<accept<"Q01">, accept<"A02">>) && breaks<rule::D24>(of<accept<"Q01">, accept<"B06">>));
// A rule on calls judges no recipe, and neither does one on what this version has no mechanism for.
static_assert(breaks<rule::D22>(of<accept<"P21">>) && breaks<rule::D22>(of<accept<"U04">>));

// The last one that fits counts, and one more is said to be too many and does not count.
using late = keel::timeout::set<keel::timeout::first_update<10_min>, keel::timeout::collective<10_min>>;
using H07 = accept<"H07">;
static_assert(keel::max_accepted == 8);
static_assert(keeps(of<late, accumulate<2>, ragged, H07, H07, H07, H07, H07, H07, H07, accept<"B06">>));
static_assert(breaks<rule::D22>(of<late, H07, H07, H07, H07, H07, H07, H07, H07, H07>));
static_assert(
    breaks<rule::D22, rule::B06>(of<late, accumulate<2>, ragged, H07, H07, H07, H07, H07, H07, H07, H07, accept<"B06">>));
static_assert(of<accept<"B06">>.accepts("B06") && !of<accept<"B06">>.accepts("B08") && !of<accept<"B06">>.accepts("") &&
              !of<>.accepts(""));
// By keel's rules alone the others take no place, as long as all of them fit.
static_assert(keeps(of<late, accumulate<2>, ragged, accept<"Q01">, H07, H07, H07, H07, H07, H07, accept<"B06">>));

template <>
struct example<rule::D23> : recipes<recipe<accept<"A02">>, recipe<>> {};
static_assert(breaks<rule::D23, rule::A02>(of<keel::recompute::reentrant, keel::model::partly_frozen, accept<"A02">>));
static_assert(breaks<rule::D23>(of<accept<"D00">>));
static_assert(breaks<rule::D23>(of<accept<"D22">>) && breaks<rule::D23>(of<accept<"A03">, accept<"A02">>));

template <>
struct example<rule::D24> : recipes<recipe<accumulate<1>, accept<"B06">>, recipe<accumulate<2>, accept<"B06">>> {};
static_assert(breaks<rule::D22, rule::D23, rule::D24>(of<accept<"B60">, accept<"A02">, accept<"B06">>));

// Batches may still turn out to be ragged, and to come without their weights, while the run goes on.
static_assert(built<accumulate<2>, accept<"B06">>().ok() && holds_only(built<accumulate<1>, accept<"B06">>(), "D24"));
static_assert(built<accumulate<2>, data::is<data::token_weighted>, accept<"B06">>().ok());
// What a rung reaches may be accepted too.
static_assert(keeps(of<ragged, halving, accept<"B06">>) && reaches<rule::B06>(of<ragged, halving>, origin::rung, 1));
static_assert(keeps(of<halving, accept<"B06">>) &&
              keeps(of<ladder<oom::offload_optimizer, oom::halve_micro_batch, oom::give_up>, accept<"B06">>));
static_assert(breaks<rule::D24>(of<ragged, ladder<oom::offload_optimizer, oom::give_up>, accept<"B06">>));
// A recipe serves several models, so whether one of them has batch norm or bfloat16 parameters is not asked, before its trainer
// is built or after.
using batch_norm = model::has<model::batch_norm>;
using bfloat16 = model::has<model::bfloat16_parameters>;
static_assert(keeps(of<halving, accept<"O10">>) && keeps(of<batch_norm, halving, accept<"O10">>));
static_assert(built<halving, accept<"O10">>().ok() && built<batch_norm, halving, accept<"O10">>().ok());
static_assert(breaks<rule::D24>(of<batch_norm, accept<"O10">>) && holds_only(built<batch_norm, accept<"O10">>(), "D24"));
static_assert(keeps(of<non_reentrant, accept<"A17">>) && keeps(of<batch_norm, non_reentrant, accept<"A17">>));
static_assert(built<non_reentrant, accept<"A17">>().ok() && built<batch_norm, non_reentrant, accept<"A17">>().ok());
static_assert(breaks<rule::D24>(of<batch_norm, accept<"A17">>));
using recomputing = ladder<oom::enable_recompute<non_reentrant>, oom::give_up>;
static_assert(keeps(of<recomputing, accept<"A17">>) && built<recomputing, accept<"A17">>().ok());
static_assert(built<batch_norm, recomputing, accept<"A17">>().ok());
static_assert(keeps(of<accumulate<2>, accept<"P06">>) && keeps(of<accumulate<2>, bfloat16, accept<"P06">>));
static_assert(built<accumulate<2>, accept<"P06">>().ok() && built<accumulate<2>, bfloat16, accept<"P06">>().ok());
static_assert(breaks<rule::D24>(of<accumulate<1>, bfloat16, accept<"P06">>));
// Nobody else sets timeouts.
static_assert(keeps(of<late, H07>) && breaks<rule::D24>(of<H07>));

// Whatever list a recipe is judged by, accept is judged where its rules are in the list, and once.
static_assert(keel::detail::verdict_on<rule::trainer_only_rules>(of<accept<"B60">, accept<"A02">>).ok());
static_assert(holds_only(keel::detail::verdict_on<rule::accept_rules>(of<accept<"B60">>), "D22"));

// Rules of one's own.
namespace {

template <class Rule>
struct own {
  template <bool Holds, class Recipe>
  struct demand {
    static_assert(Holds);
  };
};
struct Q01 : own<Q01> {
  static constexpr char const* id = "Q01";
  static constexpr char const* text = "[Q01] our cluster loses a disk a day. Fix: keel::checkpoint::keep<3> or more.";
  static constexpr bool broken(config const& c) { return c.checkpoint.keep < 3; }
};
struct Q02 : own<Q02> {
  static constexpr char const* id = "Q02";
  static constexpr char const* text = "[Q02] our kernels want four rows. Fix: keel::micro_batch<4> or more.";
  static constexpr bool may_be_accepted = true;
  static constexpr bool broken(config const& c) { return c.accumulate.micro_batch > 0 && c.accumulate.micro_batch < 4; }
};
struct Q03 : own<Q03> {
  static constexpr char const* id = "Q03";
  static constexpr char const* text = "[Q03] our learning rates are above 1e-4. Fix: a higher one.";
  static constexpr bool may_be_accepted = false;
  static constexpr bool broken(config const& c) { return c.run.known && c.run.learning_rate < 1e-4; }
};
struct Q04 : own<Q04> {
  static constexpr char const* id = "Q04";
  static constexpr char const* text = "[Q04] our scales are 64 or more. Fix: keel::loss_scale::floor<64.0>.";
  static constexpr bool broken(config const& c) {
    return c.loss_scale.kind == keel::loss_scale::kind::dynamic && c.loss_scale.initial < 64.0;
  }
};

/// A warning on one fact.
template <auto Slot, auto Fact>
struct Q05 : own<Q05<Slot, Fact>> {
  static constexpr char const* id = "Q05";
  static constexpr char const* text = "[Q05] we want to know. Fix: keel::accept<\"Q05\">.";
  static constexpr bool may_be_accepted = true;
  static constexpr bool broken(config const& c) { return c.*Slot.*Fact; }
};

}  // namespace

using three = keel::checkpoint::every<500_steps, keel::checkpoint::keep<3>>;
using two = keel::checkpoint::every<500_steps, keel::checkpoint::keep<2>>;
static_assert(violations<recipe<three, Q01>>.ok() && holds_only(violations<recipe<two, Q01>>, "Q01"));
static_assert(keel::valid<recipe<three, Q01>> && !keel::valid<recipe<two, Q01>> && keel::valid<recipe<two>>);
// It judges its own recipe and no other.
static_assert(check(of<two, Q01>).ok() && check_as<recipe<>>(of<two, Q01>).ok());
static_assert(holds_only(check_as<recipe<Q01>>(of<two>), "Q01"));
// It stands after keel's rules and before what is said of keel::accept.
constexpr verdict in_order = violations<recipe<keel::clip::value<0.0>, two, Q01, accept<"A02">>>;
static_assert(in_order.size() == 3 && in_order.begin()[0].id == rule::G11::id && in_order.begin()[1].id == Q01::id &&
              in_order.begin()[2].id == rule::D23::id);
static_assert(in_order.begin()[0].text == rule::G11::text && in_order.begin()[1].text == Q01::text);
// It is asked wherever the run can come to.
static_assert(holds_only(violations<recipe<accumulate<1, micro_batch<3>>, Q02>>, "Q02"));
static_assert(holds_only(violations<recipe<accumulate<1, micro_batch<4>>, halving, Q02>>, "Q02", origin::rung, 1));
static_assert(violations<recipe<accumulate<1, micro_batch<4>>, Q02>>.ok());
static_assert(violations<recipe<accumulate<1, micro_batch<8>>, keel::objective::grpo<4>, halving, Q02>>.ok());
template <long long Times>
using lowers = keel::nonfinite::rollback<10, keel::nonfinite::lower_lr, keel::nonfinite::attempts<Times>>;
static_assert(built<three, lowers<2>, Q03>({.learning_rate = 4e-4}).ok());
static_assert(holds_only(built<three, lowers<3>, Q03>({.learning_rate = 4e-4}), "Q03", origin::rollback));
static_assert(holds_only(built<three, lowers<3>, Q03>({.learning_rate = below(1e-4)}), "Q03"));
template <double Scale>
using down_to = keel::loss_scale::dynamic<keel::loss_scale::floor<Scale>>;
static_assert(holds_only(violations<recipe<keel::precision::fp16, down_to<below(64.0)>, Q04>>, "Q04", origin::floor));
static_assert(violations<recipe<keel::precision::fp16, down_to<64.0>, Q04>>.ok());
// One that says so may be accepted, where it is judged by.
static_assert(violations<recipe<accumulate<1, micro_batch<3>>, Q02, accept<"Q02">>>.ok());
static_assert(violations<recipe<accumulate<1, micro_batch<4>>, halving, Q02, accept<"Q02">>>.ok());
// Only it knows what would break it, so that it is kept is nothing to say; keel's rules alone do not know it.
static_assert(violations<recipe<accumulate<1, micro_batch<4>>, Q02, accept<"Q02">>>.ok() &&
              built<accumulate<1, micro_batch<4>>, Q02, accept<"Q02">>().ok());
static_assert(keeps(of<accumulate<1, micro_batch<3>>, Q02, accept<"Q02">>) && keeps(of<accept<"Q02">>));
static_assert(holds_only(violations<recipe<accumulate<1, micro_batch<3>>, accept<"Q02">>>, "D22"));
static_assert(holds_only(violations<recipe<Q03, accept<"Q03">>>, "D23") &&
              holds_only(violations<recipe<three, Q01, accept<"Q01">>>, "D23"));
constexpr verdict not_acceptable = violations<recipe<two, Q01, accept<"Q01">>>;
static_assert(not_acceptable.size() == 2 && not_acceptable.has("Q01") && not_acceptable.has("D23"));
// keel's own may be accepted beside it, and several of one's own stand in one recipe.
static_assert(violations<recipe<three, accumulate<2>, ragged, Q01, accept<"B06">>>.ok());
static_assert(violations<recipe<two, accumulate<1, micro_batch<3>>, Q01, Q02>>.size() == 2);

// Which facts count as bad as they can come: all of the model and the optimizer that would be bad news, known or not.
template <auto Slot, auto Fact>
constexpr bool comes_whatever_is_known = [] {
  config const before = keel::detail::with_facts_to_come(config{});
  config const after = keel::detail::with_facts_to_come(in_run(config{}, {}));
  return before.*Slot.*Fact && after.*Slot.*Fact;
}();
template <auto Slot, auto... Facts>
constexpr bool all_come = (comes_whatever_is_known<Slot, Facts> && ...);
using of_model = model::settings;
using of_optimizer = optimizer::settings;
static_assert(all_come<&config::model, &of_model::partly_frozen, &of_model::adapters, &of_model::batch_norm, &of_model::dropout,
                       &of_model::tied_weights, &of_model::routing, &of_model::inner_gradients, &of_model::half_parameters,
                       &of_model::bfloat16_parameters>);
static_assert(all_come<&config::optimizer, &of_optimizer::closure, &of_optimizer::unscales, &of_optimizer::whole_tensors,
                       &of_optimizer::device_only, &of_optimizer::state_on_host>);
static_assert(!all_come<&config::model, &of_model::sequence_boundaries>);
// A batch's type may say that it is packed.
static_assert(keeps(of<accept<"T01">>) && breaks<rule::D24>(of<accept<"T01">, model::has<model::sequence_boundaries>>));
// Of the batches only that they are ragged, packed and unweighted; all else stays what the recipe says.
static_assert([] {
  using weighted = data::is<data::token_weighted, data::finite>;
  config const before = of<accumulate<2>, weighted, model::has<model::sequence_boundaries>>;
  config expected = before;
  expected.data = data::is<data::ragged, data::packed, data::finite>::configured;
  config found = keel::detail::with_facts_to_come(before);
  bool const has_boundaries = found.model.sequence_boundaries;
  found.model = before.model;
  found.optimizer = before.optimizer;
  return found == expected && has_boundaries;
}());
// A rule of one's own may be about any fact.
template <auto Slot, auto Fact>
constexpr bool may_be_about =
    violations<recipe<Q05<Slot, Fact>, accept<"Q05">>>.ok() && built<Q05<Slot, Fact>, accept<"Q05">>().ok();
static_assert(may_be_about<&config::model, &of_model::sequence_boundaries> &&
              may_be_about<&config::data, &data::settings::packed> && may_be_about<&config::data, &data::settings::endless> &&
              may_be_about<&config::model, &of_model::batch_norm>);

template struct each_shown<rule::accept_rules>;

}  // namespace judged
