// D: the list itself.
#include "typed.hpp"

using namespace keel::literals;

namespace {

/// As keel/policy/slot.hpp describes it.
struct own_policy : keel::fills<keel::slot::clip> {
  static constexpr keel::clip::settings configured{.kind = keel::clip::kind::custom};
};
struct own_rule {
  static constexpr char const* id = "Q01";
  static constexpr char const* text = "[Q01] our cluster loses a disk a day. Fix: keel::checkpoint::keep<2>, or more.";
  static constexpr bool broken(keel::config const& c) { return c.checkpoint.keep == 1; }
};

}  // namespace

namespace fixed {

template <>
inline constexpr auto fixes<rule::D00> =
    said(FIX("move options into their policy", keel::checkpoint::every<500_steps, keel::checkpoint::keep<2>>),
         FIX("write your own as keel/policy/slot.hpp describes", own_policy));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::loss_scale>> =
    said(FIX("keep one of keel::loss_scale::{none, fixed, dynamic}", keel::loss_scale::none),
         FIX("keep one of keel::loss_scale::", keel::precision::fp16, keel::loss_scale::fixed<1024.0>),
         FIX("keep one of keel::loss_scale::", keel::precision::fp16, keel::loss_scale::dynamic<>));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::accumulate>> =
    said(FIX("keep one keel::accumulate<N>", keel::accumulate<4>));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::nonfinite>> =
    said(FIX("keep one of keel::nonfinite::{raise, warn, skip, rollback}", keel::nonfinite::raise),
         FIX("keep one of keel::nonfinite::", keel::nonfinite::warn<10>),
         FIX("keep one of keel::nonfinite::", keel::nonfinite::skip<10>),
         FIX("keep one of keel::nonfinite::", keel::nonfinite::rollback<10>, keel::checkpoint::every<500_steps>));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::spike>> =
    said(FIX("keep one of keel::spike::{ignore, skip, rollback}", keel::spike::ignore),
         FIX("keep one of keel::spike::", keel::spike::skip<>),
         FIX("keep one of keel::spike::", keel::spike::rollback<>, keel::checkpoint::every<500_steps>));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::schedule>> =
    said(FIX("keep one of keel::schedule::{constant, linear, cosine, warmup_stable_decay", keel::schedule::constant),
         FIX("keep one of keel::schedule::", keel::schedule::linear<>), FIX("keep one of keel::schedule::", keel::schedule::cosine<>));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::recompute>> =
    said(FIX("keep one of keel::recompute::{none, reentrant, non_reentrant}", keel::recompute::none),
         FIX("keep one of keel::recompute::", keel::recompute::reentrant),
         FIX("keep one of keel::recompute::", keel::recompute::non_reentrant));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::offload>> =
    said(FIX("keep one of keel::offload::{none, optimizer}", keel::offload::none),
         FIX("keep one of keel::offload::", keel::offload::optimizer));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::attention>> = said(
    FIX("keep one of keel::attention::{automatic, math, fused}", keel::attention::automatic),
    FIX("keep one of keel::attention::", keel::attention::math), FIX("keep one of keel::attention::", keel::attention::fused));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::oom>> =
    said(FIX("keep one of keel::oom::{raise, ladder}", keel::oom::raise),
         FIX("keep one of keel::oom::", keel::oom::ladder<keel::oom::give_up>));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::health>> =
    said(FIX("keep one of keel::health::{off, sft, grpo, ebft, watch}", keel::health::off),
         FIX("keep one of keel::health::", keel::health::sft),
         FIX("keep one of keel::health::", keel::health::grpo, keel::objective::grpo<8>));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::determinism>> =
    said(FIX("keep one of keel::determinism::{off, seeded, strict}", keel::determinism::off),
         FIX("keep one of keel::determinism::", keel::determinism::seeded<1>),
         FIX("keep one of keel::determinism::", keel::determinism::strict<1>));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::objective>> =
    said(FIX("keep one of keel::objective::{supervised, grpo, ebft}", keel::objective::supervised),
         FIX("keep one of keel::objective::", keel::objective::grpo<8>),
         FIX("keep one of keel::objective::", keel::objective::ebft<8>));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::ema>> =
    said(FIX("keep one keel::ema<D>", keel::ema<0.999>), FIX("keel::no_ema", keel::no_ema));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::model>> =
    said(FIX("list all facts in one keel::model::has<..>", keel::model::has<keel::model::frozen, keel::model::batch_norm>));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::evaluation>> =
    said(FIX("keep one of keel::evaluation::{none, every}", keel::evaluation::none),
         FIX("keep one of keel::evaluation::", keel::evaluation::every<500_steps>));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::profile>> =
    said(FIX("keep one of keel::profile::{off, every, on_symptom}", keel::profile::off),
         FIX("keep one of keel::profile::", keel::profile::every<1000_steps>),
         FIX("keep one of keel::profile::", keel::profile::on_symptom<>));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::incident>> =
    said(FIX("keep one of keel::incident::{trace, keep, off}", keel::incident::off),
         FIX("keep one of keel::incident::", keel::incident::keep<>));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::timeout>> =
    said(FIX("list all in one keel::timeout::set<..>", keel::timeout::set<keel::timeout::soft<1_min>, keel::timeout::hard<5_min>>));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::optimizer>> =
    said(FIX("list all facts in one keel::optimizer::is<..>",
             keel::optimizer::is<keel::optimizer::closure, keel::optimizer::whole_tensors>));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::data>> =
    said(FIX("list all facts in one keel::data::is<..>", keel::data::is<keel::data::finite, keel::data::drops_last>));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::device>> =
    said(FIX("keep one of keel::device::{any, cpu, cuda}", keel::device::any), FIX("keep one of keel::device::", keel::device::cpu),
         FIX("keep one of keel::device::", keel::device::cuda));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::batch_guard>> =
    said(FIX("keep one of keel::batch_guard::{on, check, drop, off}", keel::batch_guard::on),
         FIX("keep one of keel::batch_guard::", keel::batch_guard::check<>), FIX("keep one of keel::batch_guard::", keel::batch_guard::drop<>),
         FIX("keep one of keel::batch_guard::", keel::batch_guard::off));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::world>> =
    said(FIX("keep one of keel::world::{any, size}", keel::world::any), FIX("keep one of keel::world::", keel::world::size<1>));
template <>
inline constexpr auto fixes<rule::D20> =
    said(FIX("keep one of them", keel::checkpoint::every<500_steps, keel::checkpoint::keep<3>>));
template <>
inline constexpr auto fixes<rule::D25> = said(FIX("one type with the id, text and broken that keel/rule/rule.hpp describes",
             keel::checkpoint::every<500_steps, keel::checkpoint::keep<2>>, own_rule));
template <>
inline constexpr auto fixes<rule::D26> =
    said(FIX("500_steps", keel::checkpoint::every<500_steps>), FIX("500_steps", keel::evaluation::every<500_steps>),
         FIX("1_epochs", keel::checkpoint::every<1_epochs>), FIX("1_epochs", keel::evaluation::every<1_epochs>),
         FIX_BESIDE("for checkpoints also 10_min, with using namespace keel::literals", "keel::literals",
                    keel::checkpoint::every<10_min>));
template <>
inline constexpr auto fixes<rule::D22> = said(
    FIX("remove it", keel::accumulate<2>),
    FIX("name a warning that this recipe breaks, 8 at most", keel::accumulate<2>, keel::data::is<keel::data::ragged>, keel::accept<"B06">));
template <>
inline constexpr auto fixes<rule::D23> =
    said(FIX("remove the accept and follow that rule's fix", keel::recompute::reentrant, keel::shard::zero<3>));
template <>
inline constexpr auto fixes<rule::D24> = said(FIX("remove it", keel::accumulate<1>));

template <>
inline constexpr auto fixes<rule::P20> =
    said(FIX("remove it", keel::nonfinite::skip<10>), FIX("remove it", keel::accumulate<2>), FIX("remove it", keel::accumulate<1>, keel::shard::zero<2>),
         FIX("reduce_once needs keel::shard::replicate, accumulate<2>", keel::accumulate<2, keel::reduce_once>, keel::shard::replicate));

template struct each_followed<rule::slot_rules>;
template struct each_followed<rule::accept_rules>;

// Under sanitizers g++ 12 takes the text, which is put together, for no constant.
#ifndef __SANITIZE_ADDRESS__
template struct each_followed<rule::list<rule::given_twice<keel::slot::loss_scale>, rule::given_twice<keel::slot::accumulate>, rule::given_twice<keel::slot::nonfinite>, rule::given_twice<keel::slot::spike>, rule::given_twice<keel::slot::schedule>, rule::given_twice<keel::slot::recompute>, rule::given_twice<keel::slot::offload>, rule::given_twice<keel::slot::attention>, rule::given_twice<keel::slot::oom>, rule::given_twice<keel::slot::health>, rule::given_twice<keel::slot::determinism>, rule::given_twice<keel::slot::objective>, rule::given_twice<keel::slot::ema>, rule::given_twice<keel::slot::model>, rule::given_twice<keel::slot::evaluation>, rule::given_twice<keel::slot::profile>, rule::given_twice<keel::slot::incident>, rule::given_twice<keel::slot::timeout>, rule::given_twice<keel::slot::optimizer>, rule::given_twice<keel::slot::data>, rule::given_twice<keel::slot::device>, rule::given_twice<keel::slot::batch_guard>, rule::given_twice<keel::slot::world>>>;
#endif

}  // namespace fixed
