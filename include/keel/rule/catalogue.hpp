// All rules that a recipe is judged by. A new family is one include and one word below.
#pragma once

#include <keel/rule/accumulate.hpp>
#include <keel/rule/checkpoint.hpp>
#include <keel/rule/clip.hpp>
#include <keel/rule/ema.hpp>
#include <keel/rule/nonfinite.hpp>
#include <keel/rule/oom.hpp>
#include <keel/rule/precision.hpp>
#include <keel/rule/recompute.hpp>
#include <keel/rule/schedule.hpp>
#include <keel/rule/shard.hpp>
#include <keel/rule/slot.hpp>

namespace keel::rule {

namespace detail {
template <class... Lists>
struct joined;
template <class... Rules>
struct joined<list<Rules...>> {
  using type = list<Rules...>;
};
template <class... First, class... Second, class... Rest>
struct joined<list<First...>, list<Second...>, Rest...> : joined<list<First..., Second...>, Rest...> {};
}  // namespace detail

/// The rules of a single configuration.
using base_rules = typename detail::joined<slot_rules, precision_rules, clip_rules, nonfinite_rules, checkpoint_rules,
                                           accumulate_rules, recompute_rules, shard_rules, schedule_rules, ema_rules>::type;

/// Also asks what the ladder can reach.
using O09 = O09_over<base_rules>;

using catalogue = typename detail::joined<base_rules, oom_rules, list<O09>>::type;

/// Rules on the order of calls; the types of the step ask them.
using order_rules = typename detail::joined<precision_order_rules, clip_order_rules, slot_order_rules, oom_order_rules>::type;

}  // namespace keel::rule
