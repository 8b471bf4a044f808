// The numbers that a recipe leaves open (policy/given.hpp), by name, which a program passes to a trainer or a step.
//     {.clip = 1.0, .accumulate = 4, .checkpoint = 500, .checkpoint_keep = 3}     in the order of the list below
// A number that is its policy's argument, such as the 1.0 of clip::global_norm<1.0>, has the name of the slot. Any other has the names of
// the slot and the field, as in recipe files (json/load_config.hpp). Durations are numbers in the unit that the recipe specifies.
#pragma once

#include <concepts>
#include <keel/config/open_numbers.hpp>
#include <keel/policy/text.hpp>
#include <type_traits>

namespace keel {

/// A number of any kind, or none. The field that it is given for determines which kind it must be.
class given_value {
 public:
  /// The type of the literal: long long, unsigned long long or double.
  enum class kind : unsigned char { none, whole, natural, real };

  constexpr given_value() = default;
  /// Takes a real number.
  constexpr given_value(std::floating_point auto value) : kind_(kind::real), real_(static_cast<double>(value)) {}
  /// Takes a whole number.
  constexpr given_value(std::signed_integral auto value) : kind_(kind::whole), whole_(value) {}
  /// Takes a whole number that may exceed the largest long long, such as a seed.
  constexpr given_value(std::unsigned_integral auto value) : kind_(kind::natural), natural_(value) {}
  /// Rejects bool, which is not a number.
  given_value(bool) = delete;
  /// `500_steps`
  constexpr given_value(steps value) : given_value(value.count) {}
  /// `2_epochs`
  constexpr given_value(epochs value) : given_value(value.count) {}
  /// `1'000'000_tokens`
  constexpr given_value(tokens value) : given_value(value.count) {}
  /// `30_s`, `10_min`
  constexpr given_value(seconds value) : given_value(value.count) {}

  /// Returns true if a number was given.
  constexpr bool is_there() const { return kind_ != kind::none; }
  /// Writes the number to `to`. Returns false if it does not fit its type: a fraction for a count, NaN, or an overflow.
  constexpr bool put(double& to) const {
    if (kind_ == kind::whole) to = static_cast<double>(whole_);
    if (kind_ == kind::natural) to = static_cast<double>(natural_);
    if (kind_ == kind::real) to = real_;
    return to == to && !is_given(to);
  }
  /// As put(double&).
  constexpr bool put(long long& to) const { return put_integer(to, 0x1p63); }
  /// As put(double&).
  constexpr bool put(unsigned long long& to) const { return put_integer(to, 0x1p64); }
  /// As put(double&).
  constexpr bool put(int& to) const {
    long long wide = 0;
    if (!put(wide) || wide < -0x8000'0000LL || wide > 0x7fff'ffffLL) return false;
    to = static_cast<int>(wide);
    return true;
  }
  friend constexpr bool operator==(given_value const&, given_value const&) = default;

 private:
  template <class Integer>
  constexpr bool put_integer(Integer& to, double end) const {
    constexpr bool is_signed = std::signed_integral<Integer>;
    if (kind_ == kind::whole) {
      if (!is_signed && whole_ < 0) return false;
      to = static_cast<Integer>(whole_);
    } else if (kind_ == kind::natural) {
      if (is_signed && natural_ > 0x7fff'ffff'ffff'ffffULL) return false;
      to = static_cast<Integer>(natural_);
    } else {
      // Accepts 4.0 as 4.
      if (!(real_ >= (is_signed ? -end : 0.0) && real_ < end)) return false;
      if (real_ != static_cast<double>(static_cast<Integer>(real_))) return false;
      to = static_cast<Integer>(real_);
    }
    return !is_given(to);
  }

  given_value::kind kind_ = kind::none;
  long long whole_ = 0;
  unsigned long long natural_ = 0;
  double real_ = 0.0;
};

// Each member with its slot and its field.
// clang-format off
#define KEEL_NUMBERS(EACH)                                                                                                    \
  EACH(clip, clip, limit) EACH(clip_window, clip, window) EACH(clip_at_most, clip, at_most)                                   \
  EACH(clip_order, clip, order) EACH(accumulate, accumulate, count)                                                           \
  EACH(accumulate_micro_batch, accumulate, micro_batch) EACH(accumulate_global_batch, accumulate, global_batch)               \
  EACH(loss_scale, loss_scale, initial) EACH(loss_scale_growth, loss_scale, growth)                                           \
  EACH(loss_scale_backoff, loss_scale, backoff) EACH(loss_scale_growth_interval, loss_scale, growth_interval)                 \
  EACH(loss_scale_hysteresis, loss_scale, hysteresis) EACH(loss_scale_floor, loss_scale, floor)                               \
  EACH(nonfinite, nonfinite, limit) EACH(nonfinite_attempts, nonfinite, attempts) EACH(spike, spike, zscore)                  \
  EACH(spike_window, spike, window) EACH(spike_limit, spike, limit) EACH(spike_attempts, spike, attempts)                     \
  EACH(spike_ratio, spike, ratio) EACH(spike_loss_above, spike, loss_above)                                                   \
  EACH(spike_gradient_norm_above, spike, gradient_norm_above) EACH(schedule_warmup, schedule, warmup)                         \
  EACH(schedule_warmup_ratio, schedule, warmup_ratio) EACH(schedule_total, schedule, total)                                   \
  EACH(schedule_decay, schedule, decay) EACH(schedule_min_ratio, schedule, min_ratio)                                         \
  EACH(schedule_min_lr, schedule, min_lr) EACH(schedule_start_ratio, schedule, start_ratio)                                   \
  EACH(schedule_evaluations, schedule, evaluations) EACH(schedule_patience, schedule, patience)                               \
  EACH(schedule_lowered_by, schedule, lowered_by) EACH(schedule_threshold, schedule, threshold)                               \
  EACH(schedule_interval, schedule, interval) EACH(schedule_power, schedule, power)                                           \
  EACH(schedule_cycle, schedule, cycle) EACH(schedule_cycle_factor, schedule, cycle_factor)                                   \
  EACH(checkpoint, checkpoint, interval) EACH(checkpoint_keep, checkpoint, keep)                                              \
  EACH(checkpoint_mean_time_between_failures, checkpoint, mean_time_between_failures)                                         \
  EACH(checkpoint_keep_every, checkpoint, keep_every) EACH(checkpoint_failures, checkpoint, failures)                         \
  EACH(checkpoint_keep_k_best, checkpoint, keep_k_best) EACH(evaluation, evaluation, interval)                                \
  EACH(evaluation_batches, evaluation, batches) EACH(evaluation_early_stop, evaluation, early_stop)                           \
  EACH(evaluation_min_delta, evaluation, min_delta) EACH(evaluation_not_before, evaluation, not_before)                       \
  EACH(evaluation_stop_at, evaluation, stop_at) EACH(ema, ema, decay) EACH(determinism, determinism, seed)                    \
  EACH(oom_release_after, oom, release_after) EACH(batch_guard_vocabulary, batch_guard, vocabulary)                           \
  EACH(batch_guard_classes, batch_guard, classes) EACH(batch_guard_longest, batch_guard, longest)                             \
  EACH(batch_guard_padding, batch_guard, padding) EACH(batch_guard_ignored, batch_guard, ignored)                             \
  EACH(profile, profile, period) EACH(profile_warmup, profile, warmup) EACH(profile_active, profile, active)                  \
  EACH(incident, incident, most) EACH(timeout_soft, timeout, soft) EACH(timeout_hard, timeout, hard)                          \
  EACH(timeout_collective, timeout, collective) EACH(timeout_first_update, timeout, first_update)                             \
  EACH(timeout_heartbeat_interval, timeout, heartbeat_interval) EACH(timeout_heartbeat_limit, timeout, heartbeat_limit)       \
  EACH(timeout_grace, timeout, grace) EACH(timeout_force_exit, timeout, force_exit)                                           \
  EACH(timeout_longest_update, timeout, longest_update) EACH(timeout_longest_save, timeout, longest_save)                     \
  EACH(objective, objective, group) EACH(data_rows, data, rows) EACH(world, world, ranks)
// clang-format on

/// The numbers of one trainer or step: exactly those that the recipe leaves open.
struct numbers {
#define KEEL_NUMBER(MEMBER, SLOT, FIELD) given_value MEMBER = {};
  KEEL_NUMBERS(KEEL_NUMBER)
#undef KEEL_NUMBER

  /// Returns the member of a slot's field; null if there is none.
  constexpr given_value* find(char const* slot, char const* field);
  /// Returns the member of a slot's field; null if there is none.
  constexpr given_value const* find(char const* slot, char const* field) const {
    return const_cast<numbers*>(this)->find(slot, field);
  }
  friend constexpr bool operator==(numbers const&, numbers const&) = default;
};

namespace detail {

struct number_place {
  char const* name;  ///< name of the member of keel::numbers
  char const* slot;
  char const* field;
  given_value numbers::* member;
};
inline constexpr number_place number_places[] = {
#define KEEL_NUMBER(MEMBER, SLOT, FIELD) {#MEMBER, #SLOT, #FIELD, &numbers::MEMBER},
    KEEL_NUMBERS(KEEL_NUMBER)
#undef KEEL_NUMBER
};
#undef KEEL_NUMBERS

constexpr number_place const* find_number(char const* slot, char const* field) {
  for (number_place const& one : number_places) {
    if (is_same(one.slot, slot) && is_same(one.field, field)) return &one;
  }
  return nullptr;
}

}  // namespace detail

constexpr given_value* numbers::find(char const* slot, char const* field) {
  auto const* const place = detail::find_number(slot, field);
  return place == nullptr ? nullptr : &(this->*(place->member));
}

/// Why a configuration rejected a number.
enum class number_fault : unsigned char {
  missing,     ///< open, but not given
  unwanted,    ///< given, although it is a constant of the recipe or belongs to none of its policies
  not_of_kind  ///< a fraction for a count, NaN, or an overflow
};

/// Sets the open numbers of a configuration. Calls `fault(number_fault, name)` with the name of the member for each number that does not
/// fit; the configuration is then incomplete.
template <class Fault>
constexpr void give(config& value, numbers const& all, Fault fault) {
  numbers left = all;
  detail::for_each_given(value, [&](char const* slot, char const* field, auto& to) {
    auto const* const place = detail::find_number(slot, field);
    if (place == nullptr) return;
    given_value& number = left.*(place->member);
    if (!number.is_there()) {
      fault(number_fault::missing, place->name);
    } else if (!number.put(to)) {
      fault(number_fault::not_of_kind, place->name);
    }
    number = {};
  });
  for (auto const& place : detail::number_places) {
    if ((left.*(place.member)).is_there()) fault(number_fault::unwanted, place.name);
  }
  value.given = 0;
}

}  // namespace keel
