// evaluation: when the trainer evaluates automatically. trainer::evaluate does not need it.
//   none            the default.
//   every<D, ..>    every `500_steps` or `1_epochs`, with the data and loss of trainer::evaluate_on.
// Options: batches<N> limits the batches of one evaluation. The monitored value is the first value of the first evaluation, or the one that
// monitor<"accuracy"> or monitor<"validation/accuracy"> names. Smaller values are better, unless larger_is_better is given. averaged
// evaluates the moving average of keel::ema.
// early_stop<N> ends the run after N consecutive evaluations without a better value; min_delta<D> sets the required improvement, and
// not_before<5000_steps> the first update at which it applies. stop_at<V> ends the run as soon as a value reaches V, and stop_on_nonfinite
// when one is NaN or infinite.
// Left out: evaluation by wall-clock time, on which ranks would not agree.
#pragma once

#include <keel/policy/duration.hpp>
#include <keel/policy/name.hpp>
#include <keel/policy/number.hpp>
#include <keel/policy/slot.hpp>
#include <type_traits>

namespace keel::slot {
struct evaluation;
}

namespace keel::evaluation {

enum class kind : unsigned char { none, every, every_epochs };

struct settings {
  evaluation::kind kind = kind::none;
  long long interval = 0;          ///< updates or epochs, depending on kind
  long long batches = 0;           ///< batches per evaluation; 0: all
  long long early_stop = 0;        ///< consecutive evaluations without a better value that end the run; 0: never
  double min_delta = 0.0;          ///< required improvement for early_stop
  long long not_before = 0;        ///< updates before which early_stop does not end the run
  double stop_at = 0.0;            ///< value that ends the run
  bool has_stop_at = false;        ///< stop_at was given
  bool stop_on_nonfinite = false;  ///< a NaN or an infinity ends the run
  bool larger = false;             ///< larger values are better
  bool averaged = false;           ///< evaluates the moving average instead of the parameters
  short_name monitor{};            ///< name of the monitored value; empty: the first value of the first evaluation
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <class Option>
concept option = option_of<Option, settings>;

template <long long Count>
struct batches : sets<&settings::batches, Count> {};
template <number Difference>
struct min_delta : sets<&settings::min_delta, Difference> {};
template <steps Updates>
struct not_before : sets<&settings::not_before, Updates.count> {};
/// Ends the run when the monitored value reaches this one.
template <number Value>
struct stop_at {
  static constexpr void apply(settings& to) {
    to.stop_at = Value;
    to.has_stop_at = true;
  }
};
struct stop_on_nonfinite : sets<&settings::stop_on_nonfinite, true> {};
struct larger_is_better : sets<&settings::larger, true> {};
struct averaged : sets<&settings::averaged, true> {};
template <short_name Name>
struct monitor : sets<&settings::monitor, Name> {};
template <long long Evaluations>
struct early_stop : sets<&settings::early_stop, Evaluations> {};

constexpr settings at(steps interval) { return {.kind = kind::every, .interval = interval.count}; }
constexpr settings at(epochs interval) { return {.kind = kind::every_epochs, .interval = interval.count}; }
/// Treats a plain number as updates, so that only D26 reports the missing unit; D26 also rejects every other type.
template <class Other>
constexpr settings at(Other interval) {
  if constexpr (std::is_same_v<Other, given_number>) {
    return at(steps{interval});
  } else if constexpr (std::is_arithmetic_v<Other>) {
    return at(steps{static_cast<long long>(interval)});
  } else {
    return at(steps{1});
  }
}

struct none : fills<slot::evaluation> {
  static constexpr settings configured{};
};
template <auto Interval, option... Options>
struct every : configures<slot::evaluation, at(Interval), Options...> {
  static constexpr bool has_unit = is_one_of<steps, epochs, given_number>(Interval);
};

}  // namespace keel::evaluation

namespace keel {

struct slot::evaluation : slot_description {
  using settings = keel::evaluation::settings;
  using default_policy = keel::evaluation::none;
  static constexpr char const* name = "evaluation";
  static constexpr char const* given_twice = "D15";
  static constexpr policy_list<settings, 3> policies() {
    return {{{"none", {}},
             {"every", {.kind = keel::evaluation::kind::every}, "*", "interval", true},
             {"every_epochs", {.kind = keel::evaluation::kind::every_epochs}, "*", "interval", true, "every"}}};
  }
  static constexpr void fields(auto& s, auto& field) {
    if (s.kind == keel::evaluation::kind::every_epochs) {
      field.epochs("interval", s.interval);
    } else {
      field.updates("interval", s.interval);
    }
    field.number("batches", s.batches);
    field.number("early_stop", s.early_stop);
    field.number("min_delta", s.min_delta);
    field.updates("not_before", s.not_before);
    field.optional_number("stop_at", s.stop_at, s.has_stop_at);
    field.truth("stop_on_nonfinite", s.stop_on_nonfinite);
    field.truth("larger_is_better", s.larger);
    field.truth("averaged", s.averaged);
    field.name("monitor", s.monitor.letters);
  }
};

}  // namespace keel
