// checkpoint: when the complete state of the run is saved, and how many saves are kept.
//   never              the default; there is nothing to resume from.
//   every<D, ..>       every `500_steps`, `1_epochs`, `10'000'000_tokens` or `10_min`.
//   young_daly<..>     computes the interval from mean_time_between_failures<D> and the measured cost of a save (Young 1974, Daly 2006).
//                      The first save follows the first update and measures the cost.
// Retention: keep<N> keeps the newest N. keep_every<5000_steps> also keeps those at multiples of the interval. keep_best or keep_k_best<3>
// also keeps the best, judged by_evaluation (by the monitored value of the slot evaluation; by_evaluation_loss is the same) or
// by_training_loss (by the mean since the last save). If the recipe rolls back, up to two more are kept: the newest one that precedes any
// fault the recipe can detect, and its successor.
// on_best also saves as soon as an evaluation is the best so far. Saves are synchronous by default. Under asynchronous, training only
// pauses while the state is copied to host memory, and continues while the copy is written. A save that becomes due while another is being
// written waits for it; with drop_when_busy it is dropped. failures<N>: the N-th consecutive failed save ends the run. Earlier failures are
// events, and older checkpoints are kept.
// A run that saves at all also does so when a file named `save` appears in its directory, on SIGUSR2, when it ends, and under on_exception
// when an exception ends it. Such requested saves never replace a scheduled one: the next save replaces them, and no rollback uses them.
// Left out: weights-only saves (not resumable; load_weights reads the weights from any checkpoint), and two cadences at once (S14).
#pragma once

#include <keel/policy/duration.hpp>
#include <keel/policy/given.hpp>
#include <keel/policy/slot.hpp>
#include <type_traits>

namespace keel::slot {
struct checkpoint;
}

namespace keel::checkpoint {

enum class kind : unsigned char { never, every_steps, every_seconds, young_daly, every_epochs, every_tokens };
/// The criterion for the best checkpoint.
enum class metric : unsigned char { none, training_loss, evaluation_loss };

struct settings {
  checkpoint::kind kind = kind::never;
  long long interval = 0;                                ///< updates, seconds, epochs or tokens, depending on kind
  long long keep = 2;                                    ///< number of newest checkpoints to keep
  bool asynchronous = false;                             ///< training only pauses while the state is copied to host memory
  long long mean_time_between_failures = 0;              ///< seconds
  bool best = false;                                     ///< the best checkpoint is kept in addition to the newest
  checkpoint::metric metric = checkpoint::metric::none;  ///< the criterion for the best checkpoint
  long long keep_every = 0;                              ///< keeps checkpoints at multiples of this many updates; 0: none
  bool on_best = false;                                  ///< saves immediately when an evaluation is the best so far
  bool drop_when_busy = false;                           ///< drops a save that becomes due while another is being written
  long long failures = 3;                                ///< consecutive failed saves that end the run
  long long best_count = 0;                              ///< number of best checkpoints to keep; 0: one if `best` is set
  bool on_exception = false;                             ///< saves when an exception ends the run
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <class Option>
concept option = option_of<Option, settings>;

template <long long Count>
struct keep : sets<&settings::keep, Count> {};
struct synchronous : sets<&settings::asynchronous, false> {};
struct asynchronous : sets<&settings::asynchronous, true> {};
template <seconds Duration>
struct mean_time_between_failures : sets<&settings::mean_time_between_failures, Duration.count> {};

template <steps Updates>
struct keep_every : sets<&settings::keep_every, Updates.count> {};
struct drop_when_busy : sets<&settings::drop_when_busy, true> {};
template <long long InARow>
struct failures : sets<&settings::failures, InARow> {};
/// Keeps the best checkpoint, and saves as soon as an evaluation is the best so far.
struct on_best {
  static constexpr void apply(settings& to) { to.best = to.on_best = true; }
};
struct keep_best : sets<&settings::best, true> {};
/// Keeps the best `Count` checkpoints.
template <long long Count>
struct keep_k_best {
  static constexpr void apply(settings& to) {
    to.best = true;
    to.best_count = Count == 0 ? -1 : Count;  // reported by S24; 0 would mean that no count was given
  }
};
struct on_exception : sets<&settings::on_exception, true> {};
struct by_training_loss : sets<&settings::metric, metric::training_loss> {};
struct by_evaluation_loss : sets<&settings::metric, metric::evaluation_loss> {};

/// Judges checkpoints by the monitored value of the slot evaluation.
using by_evaluation = by_evaluation_loss;

constexpr settings at(epochs interval) { return {.kind = kind::every_epochs, .interval = interval.count}; }
constexpr settings at(tokens interval) { return {.kind = kind::every_tokens, .interval = interval.count}; }
constexpr settings at(steps interval) { return {.kind = kind::every_steps, .interval = interval.count}; }
constexpr settings at(seconds interval) { return {.kind = kind::every_seconds, .interval = interval.count}; }
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

struct never : fills<slot::checkpoint> {
  static constexpr settings configured{};
};
template <auto Interval, option... Options>
struct every : configures<slot::checkpoint, at(Interval), Options...> {
  static constexpr bool has_unit = is_one_of<steps, epochs, tokens, seconds, given_number>(Interval);
};
template <option... Options>
struct young_daly : configures<slot::checkpoint, settings{.kind = kind::young_daly}, Options...> {};

}  // namespace keel::checkpoint

namespace keel {

struct slot::checkpoint : slot_description {
  using settings = keel::checkpoint::settings;
  using default_policy = keel::checkpoint::never;
  static constexpr char const* name = "checkpoint";
  static constexpr char const* given_twice = "S14";
  static constexpr char const* timed =
      " interval keep keep_every asynchronous drop_when_busy failures keep_best keep_k_best on_best on_exception metric ";
  static constexpr policy_list<settings, 6> policies() {
    return {{{"never", {}},
             {"every_steps", {.kind = keel::checkpoint::kind::every_steps}, timed, "interval", true, "every"},
             {"every_epochs", {.kind = keel::checkpoint::kind::every_epochs}, timed, "interval", true, "every"},
             {"every_tokens", {.kind = keel::checkpoint::kind::every_tokens}, timed, "interval", true, "every"},
             {"every_seconds", {.kind = keel::checkpoint::kind::every_seconds}, timed, "interval", true, "every"},
             {"young_daly",
              {.kind = keel::checkpoint::kind::young_daly},
              " mean_time_between_failures keep asynchronous drop_when_busy failures keep_best keep_k_best on_best "
              "on_exception metric ",
              "mean_time_between_failures"}}};
  }
  static constexpr void fields(auto& s, auto& field) {
    switch (s.kind) {
      case keel::checkpoint::kind::every_seconds:
        field.seconds("interval", s.interval);
        break;
      case keel::checkpoint::kind::every_epochs:
        field.epochs("interval", s.interval);
        break;
      case keel::checkpoint::kind::every_tokens:
        field.tokens("interval", s.interval);
        break;
      default:
        field.updates("interval", s.interval);
    }
    field.number("keep", s.keep);
    field.truth("asynchronous", s.asynchronous);
    field.seconds("mean_time_between_failures", s.mean_time_between_failures);
    field.truth("keep_best", s.best);
    field.updates("keep_every", s.keep_every);
    field.truth("drop_when_busy", s.drop_when_busy);
    field.number("failures", s.failures);
    field.number("keep_k_best", s.best_count);
    field.truth("on_best", s.on_best);
    field.truth("on_exception", s.on_exception);
    field.choice("metric", s.metric, {"none", "training_loss", "evaluation_loss"});
  }
};

}  // namespace keel
