// Folds a recipe's list of types into one constexpr value.
#pragma once

#include <keel/policy/state.hpp>
#include <keel/recipe/config.hpp>
#include <keel/recipe/recipe.hpp>

namespace keel {
namespace detail {

struct tally {
  unsigned seen = 0;
  unsigned repeated = 0;
  int strangers = 0;
  int disagreeing_options = 0;
  int unsaved_states = 0;
};

template <class Entry>
constexpr void count_entry(tally& to) {
  if constexpr (policy<Entry>) {
    unsigned const bit = 1U << static_cast<int>(Entry::in_slot);
    to.repeated |= to.seen & bit;
    to.seen |= bit;
    if constexpr (requires { Entry::options_agree; }) to.disagreeing_options += Entry::options_agree ? 0 : 1;
    to.unsaved_states += state_is_saveable<Entry> ? 0 : 1;
  } else {
    ++to.strangers;
  }
}

template <class... Policies>
constexpr config fold(recipe<Policies...> const* list) {
  tally count;
  (count_entry<Policies>(count), ...);
  return config{
      .precision = decltype(policy_in<slot::precision>(list))::type::configured,
      .loss_scale = decltype(policy_in<slot::loss_scale>(list))::type::configured,
      .accumulate = decltype(policy_in<slot::accumulate>(list))::type::configured,
      .clip = decltype(policy_in<slot::clip>(list))::type::configured,
      .nonfinite = decltype(policy_in<slot::nonfinite>(list))::type::configured,
      .spike = decltype(policy_in<slot::spike>(list))::type::configured,
      .schedule = decltype(policy_in<slot::schedule>(list))::type::configured,
      .checkpoint = decltype(policy_in<slot::checkpoint>(list))::type::configured,
      .recompute = decltype(policy_in<slot::recompute>(list))::type::configured,
      .shard = decltype(policy_in<slot::shard>(list))::type::configured,
      .offload = decltype(policy_in<slot::offload>(list))::type::configured,
      .attention = decltype(policy_in<slot::attention>(list))::type::configured,
      .oom = decltype(policy_in<slot::oom>(list))::type::configured,
      .health = decltype(policy_in<slot::health>(list))::type::configured,
      .determinism = decltype(policy_in<slot::determinism>(list))::type::configured,
      .objective = decltype(policy_in<slot::objective>(list))::type::configured,
      .ema = decltype(policy_in<slot::ema>(list))::type::configured,
      .model = decltype(policy_in<slot::model>(list))::type::configured,
      .repeated = count.repeated,
      .strangers = count.strangers,
      .disagreeing_options = count.disagreeing_options,
      .unsaved_states = count.unsaved_states,
  };
}

}  // namespace detail

/// The recipe as a value.
template <class Recipe>
inline constexpr config config_of = detail::fold(decltype(detail::list_of(static_cast<Recipe const*>(nullptr))){});

}  // namespace keel
