// All rules that check a recipe. A new family needs an include and an entry below.
#pragma once

#include <keel/rule/accumulate.hpp>
#include <keel/rule/attention.hpp>
#include <keel/rule/checkpoint.hpp>
#include <keel/rule/clip.hpp>
#include <keel/rule/data.hpp>
#include <keel/rule/device.hpp>
#include <keel/rule/ema.hpp>
#include <keel/rule/evaluation.hpp>
#include <keel/rule/given_twice.hpp>
#include <keel/rule/health.hpp>
#include <keel/rule/nonfinite.hpp>
#include <keel/rule/offload.hpp>
#include <keel/rule/oom.hpp>
#include <keel/rule/precision.hpp>
#include <keel/rule/profile.hpp>
#include <keel/rule/recompute.hpp>
#include <keel/rule/schedule.hpp>
#include <keel/rule/shard.hpp>
#include <keel/rule/slot.hpp>
#include <keel/rule/timeout.hpp>

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

/// Every rule that checks a configuration.
using catalogue = typename detail::joined<slot_rules, given_twice_rules, precision_rules, clip_rules, nonfinite_rules,
                                          checkpoint_rules, accumulate_rules, recompute_rules, offload_rules, shard_rules,
                                          schedule_rules, ema_rules, evaluation_rules, device_rules, profile_rules, data_rules,
                                          timeout_rules, health_rules, oom_rules>::type;

/// Rules about calls and the running loop, which are checked by the types and mechanisms concerned.
using call_order_rules =
    typename detail::joined<precision_order_rules, clip_order_rules, nonfinite_order_rules, checkpoint_order_rules,
                            shard_order_rules, ema_order_rules, recompute_order_rules, attention_order_rules,
                            evaluation_order_rules, oom_order_rules, slot_order_rules>::type;

}  // namespace keel::rule
