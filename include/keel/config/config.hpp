// The recipe as one value, which rules, checkpoints and printers read. A recipe folds into it at compile time (config_of), a tool may fill
// it at run time, and the same rules apply to both. Its members are the slots, which are listed here.
#pragma once

#include <keel/policy/accept.hpp>
#include <keel/policy/accumulate.hpp>
#include <keel/policy/attention.hpp>
#include <keel/policy/batch_guard.hpp>
#include <keel/policy/checkpoint.hpp>
#include <keel/policy/clip.hpp>
#include <keel/policy/data.hpp>
#include <keel/policy/determinism.hpp>
#include <keel/policy/device.hpp>
#include <keel/policy/duration.hpp>
#include <keel/policy/ema.hpp>
#include <keel/policy/evaluation.hpp>
#include <keel/policy/facts.hpp>
#include <keel/policy/health.hpp>
#include <keel/policy/incident.hpp>
#include <keel/policy/loss_scale.hpp>
#include <keel/policy/model.hpp>
#include <keel/policy/nonfinite.hpp>
#include <keel/policy/objective.hpp>
#include <keel/policy/offload.hpp>
#include <keel/policy/oom.hpp>
#include <keel/policy/optimizer.hpp>
#include <keel/policy/precision.hpp>
#include <keel/policy/profile.hpp>
#include <keel/policy/recompute.hpp>
#include <keel/policy/schedule.hpp>
#include <keel/policy/shard.hpp>
#include <keel/policy/slot.hpp>
#include <keel/policy/spike.hpp>
#include <keel/policy/timeout.hpp>
#include <keel/policy/world.hpp>
#include <type_traits>
#include <utility>

// The slots, in the order of prints and files. A new slot needs its header, its include above, and its name here. The last five are facts:
// declarations of a recipe about its environment, which only rules read.
// clang-format off
#define KEEL_SLOTS(EACH)                                                                                                      \
  EACH(precision) EACH(loss_scale) EACH(accumulate) EACH(clip) EACH(nonfinite) EACH(spike) EACH(schedule) EACH(checkpoint)   \
  EACH(recompute) EACH(shard) EACH(offload) EACH(attention) EACH(oom) EACH(batch_guard) EACH(health) EACH(determinism) EACH(objective) EACH(ema) \
  EACH(evaluation) EACH(profile) EACH(incident) EACH(timeout) EACH(model) EACH(optimizer) EACH(data) EACH(device) EACH(world)
// clang-format on

namespace keel {

/// Facts that are known only when a trainer is constructed. A rule that needs one of these checks `known` first.
struct run_facts {
  /// Value of `updates` if the batches determine the length of the run.
  static constexpr long long length_of_batches = -1;

  bool known = false;                                   ///< false while the compiler checks a recipe
  long long world_size = 1;                             ///< number of ranks
  long long updates = 0;                                ///< length of the run in updates; 0: unlimited
  double learning_rate = 0.0;                           ///< smallest learning rate of the optimizer's parameter groups
  bool half_kernels = true;                             ///< the device computes in fp16
  bool bfloat16_kernels = true;                         ///< the device computes in bf16
  keel::device::kind device = keel::device::kind::any;  ///< device of the parameters, if it is one of these
  bool is_part = false;                                 ///< part of a run of several models, whose length counts iterations
  bool has_parts = false;                               ///< run of several models, each with its own recipe
  bool is_length_pending = false;                       ///< the batches of fit will determine the length
  friend constexpr bool operator==(run_facts const&, run_facts const&) = default;
};

/// The settings of each slot, in a member with the slot's name, and facts about the list of policies itself.
struct config {
#define KEEL_SLOT(NAME) keel::slot::NAME::settings NAME{};
  KEEL_SLOTS(KEEL_SLOT)
#undef KEEL_SLOT

  unsigned repeated = 0;                ///< bit i: the slot with that index was given more than once
  int unknown_entries = 0;              ///< types in the list that are neither policy, rule nor accept
  int disagreeing_options = 0;          ///< policies with options that contradict each other
  int unitless_intervals = 0;           ///< policies whose interval is a number without a unit
  int unsaved_states = 0;               ///< stateful policies whose state cannot be saved
  int given = 0;                        ///< numbers that the program supplies later
  int malformed_rules = 0;              ///< custom rules that do not follow the grammar in keel/rule/rule.hpp
  int accepted_count = 0;               ///< rules that the recipe accepts
  rule_id accepted[max_accepted] = {};  ///< ids of accept<"B06">; ids beyond the capacity are only counted in accepted_count

  run_facts run{};  ///< set when a trainer is constructed

  /// True if the recipe accepts the rule with this id, such as "B06".
  constexpr bool accepts(char const* id) const {
    rule_id const wanted(id);
    for (int i = 0; i < accepted_count && i < max_accepted; ++i) {
      if (accepted[i] == wanted) return true;
    }
    return false;
  }

  /// True if the recipe has more than one policy for this slot.
  template <class Slot>
  constexpr bool has_duplicate_slot() const;

  friend constexpr bool operator==(config const&, config const&) = default;
};

/// A list of slots.
template <class... Slots>
struct slot_list {};

namespace detail {
template <class First, class... Slots>
slot_list<Slots...> without_first();
#define KEEL_SLOT(NAME) , slot::NAME
using listed_slots = decltype(without_first<void KEEL_SLOTS(KEEL_SLOT)>());
#undef KEEL_SLOT
#define KEEL_SLOT(NAME) \
  constexpr auto place_of(slot::NAME const*) { return &config::NAME; }
KEEL_SLOTS(KEEL_SLOT)
#undef KEEL_SLOT
#undef KEEL_SLOTS
}  // namespace detail

/// All slots.
using slots = detail::listed_slots;

/// Pointer to the member with a slot's settings: `c.*place<slot::clip>` is `c.clip`.
template <class Slot>
inline constexpr auto place = detail::place_of(static_cast<Slot const*>(nullptr));

namespace detail {

template <int Index, class Slot>
struct slot_at {};
template <class Slots, class Indices>
struct indexed_slots;
template <class... Slots, int... Index>
struct indexed_slots<slot_list<Slots...>, std::integer_sequence<int, Index...>> : slot_at<Index, Slots>... {};

template <class... Slots>
constexpr int size_of(slot_list<Slots...>) {
  return sizeof...(Slots);
}
using all_slots = indexed_slots<slots, std::make_integer_sequence<int, size_of(slots{})>>;

template <class Slot, int Index>
constexpr int index_in(slot_at<Index, Slot> const*) {
  return Index;
}
template <int Index, class Slot>
Slot* slot_in(slot_at<Index, Slot> const*);
template <int Index>
using slot_with_index = std::remove_pointer_t<decltype(slot_in<Index>(static_cast<all_slots const*>(nullptr)))>;

}  // namespace detail

/// Number of slots.
inline constexpr int slot_count = detail::size_of(slots{});

/// Index of a slot.
template <class Slot>
inline constexpr int index_of = detail::index_in<Slot>(static_cast<detail::all_slots const*>(nullptr));

template <class Slot>
constexpr bool config::has_duplicate_slot() const {
  return (repeated >> index_of<Slot> & 1U) != 0;
}

}  // namespace keel
