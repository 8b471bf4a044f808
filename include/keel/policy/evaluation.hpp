// evaluation: when the trainer evaluates by itself. trainer::evaluate is there without it.
//   none            the default.
//   every<D, ..>    each `500_steps` or `1_epochs`, on what trainer::evaluate_on was given.
// Options: batches<N> bounds one evaluation. What is judged is the first value of the first evaluation, or what
// monitor<"accuracy"> or monitor<"validation/accuracy"> names; smaller is better, or larger_is_better. averaged evaluates the
// moving average of keel::ema. The run ends early after early_stop<N> evaluations without a better value, where min_delta<D>
// says by how much and not_before<5000_steps> from when on; at once when a value reaches stop_at<V>, or with stop_on_nonfinite
// is NaN or infinite. Left out: evaluation by wall-clock time, which ranks would not agree on.
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
  long long interval = 0;          ///< updates or epochs, by kind
  long long batches = 0;           ///< in one evaluation; 0: all
  long long early_stop = 0;        ///< evaluations in a row without a better value; 0: never
  double min_delta = 0.0;          ///< by which a value must be better to count for early_stop
  long long not_before = 0;        ///< updates before which early_stop does not end the run
  double stop_at = 0.0;            ///< value that ends the run
  bool has_stop_at = false;        ///< stop_at was given
  bool stop_on_nonfinite = false;  ///< a NaN or an infinity ends the run
  bool larger = false;             ///< is better
  bool averaged = false;           ///< the moving average is evaluated, and not the parameters
  short_name monitor{};            ///< what is judged; empty: the first value of the first evaluation
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
/// Ends the run when the judged value reaches this one.
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
/// What has no unit that this policy takes is rejected (D26); a number is taken as updates, so no other rule reports it.
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
