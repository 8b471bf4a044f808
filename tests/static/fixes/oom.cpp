// O: the ladder.
#include "typed.hpp"

using namespace keel::literals;
namespace oom = keel::oom;
using groups = keel::objective::grpo<8>;
using batch_norm = keel::model::has<keel::model::batch_norm>;
using quantising = oom::ladder<oom::quantize_base, oom::give_up>;
using profiled = keel::profile::every<1000_steps>;

namespace {
struct on_all_ranks {
  static constexpr keel::oom::rung_settings rung{.kind = keel::oom::rung_kind::custom, .agreed = true};
};
}  // namespace

namespace fixed {

template <>
inline constexpr auto fixes<rule::O01> =
    said(FIX("take it on all ranks and set rung.agreed", keel::shard::replicate, oom::ladder<on_all_ranks, oom::give_up>));
template <>
inline constexpr auto fixes<rule::O02> =
    said(FIX("remove it", oom::ladder<oom::halve_micro_batch, oom::give_up>),
         FIX("keel::oom::halve_micro_batch first, which keeps the batch", oom::ladder<keel::oom::halve_micro_batch, oom::give_up>),
         FIX("keel::oom::halve_micro_batch first, which keeps the batch", keel::attention::math,
             oom::ladder<keel::oom::halve_micro_batch, oom::fused_attention, oom::give_up>));
template <>
inline constexpr auto fixes<rule::O05> =
    said(FIX("make keel::oom::give_up its last rung", oom::ladder<oom::halve_micro_batch, keel::oom::give_up>));
template <>
inline constexpr auto fixes<rule::O06> =
    said(FIX("order the rungs as keel/policy/oom.hpp lists them, give_up last", keel::model::has<keel::model::adapters>, keel::attention::math,
             oom::ladder<oom::halve_micro_batch, oom::enable_recompute<keel::recompute::non_reentrant>, oom::offload_optimizer,
                         oom::fused_attention, oom::quantize_base, oom::shorten_sequence<512>, oom::give_up>));
template <>
inline constexpr auto fixes<rule::O08> =
    said(FIX("remove that rung", keel::recompute::non_reentrant, oom::ladder<oom::halve_micro_batch, oom::give_up>),
         FIX("remove that rung", keel::accumulate<1, keel::micro_batch<1>>, oom::ladder<oom::offload_optimizer, oom::give_up>),
         FIX("the policy", oom::ladder<oom::enable_recompute<keel::recompute::non_reentrant>, oom::give_up>),
         FIX("earlier rung that does the same", oom::ladder<oom::halve_micro_batch, oom::offload_optimizer, oom::give_up>));
template <>
inline constexpr auto fixes<rule::O10> =
    said(FIX("layer norm", oom::ladder<oom::halve_micro_batch, oom::give_up>),
         FIX("a ladder without halve_micro_batch", batch_norm, oom::ladder<oom::offload_optimizer, oom::give_up>),
         FIX("keel::accept<\"O10\">", batch_norm, oom::ladder<oom::halve_micro_batch, oom::give_up>, keel::accept<"O10">));
template <>
inline constexpr auto fixes<rule::O15> =
    said(FIX("keel::micro_batch<N> of an even number of groups", groups, keel::accumulate<1, keel::micro_batch<16>>,
             oom::ladder<oom::halve_micro_batch, oom::give_up>),
         FIX("keel::micro_batch<N> of an even number of groups", groups, keel::accumulate<1, keel::micro_batch<48>>,
             oom::ladder<oom::halve_micro_batch, oom::give_up>),
         FIX("no halve_micro_batch", groups, keel::accumulate<1, keel::micro_batch<24>>, oom::ladder<oom::offload_optimizer, oom::give_up>));
template <>
inline constexpr auto fixes<rule::O11> =
    said(FIX("keel::profile::off", keel::profile::off, oom::ladder<oom::halve_micro_batch, oom::give_up>),
         FIX("a ladder without halve_micro_batch", profiled, oom::ladder<oom::offload_optimizer, oom::give_up>),
         FIX("keel::accept<\"O11\">", profiled, oom::ladder<oom::halve_micro_batch, oom::give_up>, keel::accept<"O11">));
template <>
inline constexpr auto fixes<rule::O21> =
    said(FIX("keel::oom::shorten_sequence<512>, at least 1 token", oom::ladder<keel::oom::shorten_sequence<512>, oom::give_up>),
         FIX("at least 1 token and fewer than a rung before it", oom::ladder<oom::shorten_sequence<256>, oom::shorten_sequence<1>, oom::give_up>));
template <>
inline constexpr auto fixes<rule::O22> =
    said(FIX("keel::oom::release_after<500_steps> with such a rung", oom::ladder<oom::offload_optimizer, oom::give_up, keel::oom::release_after<500_steps>>),
         FIX("remove it", oom::ladder<oom::shorten_sequence<512>, oom::give_up>));
template <>
inline constexpr auto fixes<rule::O23> =
    said(FIX("remove it", oom::ladder<oom::halve_micro_batch, oom::give_up>),
         FIX("make it one of 16 rungs of keel/policy/oom.hpp, in their order; give_up last",
             oom::ladder<oom::halve_micro_batch, oom::enable_recompute<keel::recompute::non_reentrant>, oom::give_up>),
         FIX("in their order; give_up last", keel::attention::math, oom::ladder<oom::offload_optimizer, oom::fused_attention, oom::give_up>));

template <>
inline constexpr auto fixes<rule::M06> = said(FIX("keel::model::has<keel::model::adapters>", quantising, keel::model::has<keel::model::adapters>),
                                              FIX("remove oom::quantize_base", keel::oom::ladder<keel::oom::give_up>));

template struct each_followed<rule::oom_rules>;

}  // namespace fixed
