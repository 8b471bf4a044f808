// A: recomputation of activations.
#include "typed.hpp"

namespace model = keel::model;
using non_reentrant = keel::recompute::non_reentrant;
using reentrant = keel::recompute::reentrant;

namespace fixed {

template <>
inline constexpr auto fixes<rule::A01> = said(FIX("keel::recompute::reentrant", keel::recompute::reentrant, keel::shard::zero<3>),
                                              FIX("keel::shard::zero<2>", non_reentrant, keel::shard::zero<2>));
template <>
inline constexpr auto fixes<rule::A02> =
    said(FIX("non_reentrant", keel::recompute::non_reentrant, model::partly_frozen),
         FIX("model::inputs_require_grad", reentrant, model::has<model::frozen, keel::model::inputs_require_grad>));
template <>
inline constexpr auto fixes<rule::A03> =
    said(FIX("recompute::reentrant with model::inputs_require_grad", keel::recompute::reentrant, keel::shard::zero<3>,
             model::has<model::adapters, keel::model::inputs_require_grad>));
template <>
inline constexpr auto fixes<rule::A04> =
    said(FIX("recompute::none, no such rung", keel::recompute::none, keel::shard::zero<3>, model::has<model::inner_gradients>),
         FIX("recompute::none, no such rung", keel::recompute::none, model::has<model::inner_gradients>,
             keel::oom::ladder<keel::oom::offload_optimizer, keel::oom::give_up>),
         FIX("non_reentrant below ZeRO-3", non_reentrant, keel::shard::zero<2>, model::has<model::inner_gradients>),
         FIX("non_reentrant below ZeRO-3", model::has<model::inner_gradients>,
             keel::oom::ladder<keel::oom::enable_recompute<non_reentrant>, keel::oom::give_up>));
template <>
inline constexpr auto fixes<rule::A16> =
    said(FIX("recompute::none, no such rung", keel::recompute::none, model::has<model::routing>),
         FIX("keel::accept<\"A16\">", non_reentrant, model::has<model::routing>, keel::accept<"A16">));
template <>
inline constexpr auto fixes<rule::A17> =
    said(FIX("recompute::none, no such rung", keel::recompute::none, model::has<model::batch_norm>),
         FIX("keel::accept<\"A17\">", non_reentrant, model::has<model::batch_norm>, keel::accept<"A17">));

template struct each_followed<rule::recompute_rules>;

}  // namespace fixed
