// checkpoint: when the whole state of the run is saved, and how many saves are kept.
//   never              the default; nothing to resume from.
//   every<D, ..>       each `500_steps`, `1_epochs`, `10'000'000_tokens` or `10_min`.
//   young_daly<..>     from mean_time_between_failures<D> and the measured cost of a save (Young 1974, Daly 2006); the first
//                      save follows the first update and measures.
// What stays: keep<N>, the newest; keep_every<5000_steps>, those as well; keep_best, or keep_k_best<3>, judged by_evaluation
// (what the slot evaluation monitors; by_evaluation_loss is the same) or by_training_loss (the mean since the last save).
// Where the recipe rolls back, up to two more stay: the newest from before any fault that it can see, and the one that takes its place.
// on_best also saves as soon as an evaluation is the best so far. How: synchronous, the default, or asynchronous: training
// stands still for a copy in host memory and goes on while that is written. A save that is due while the last one is written
// waits for it, or with drop_when_busy is dropped. failures<N>: the N-th save in a row that fails ends the run; those before
// it are events, and older checkpoints stay. A run that saves also does so when a file named `save` appears in its directory,
// on SIGUSR2, when it ends, and with on_exception when an exception ends it. Such requested saves never replace a scheduled
// one: the next save takes their place, and no rollback uses them. Left out: weights-only saves (not resumable;
// load_weights reads them from any checkpoint), and two cadences at once (S14).
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
/// What the best checkpoint is judged by.
enum class metric : unsigned char { none, training_loss, evaluation_loss };

struct settings {
  checkpoint::kind kind = kind::never;
  long long interval = 0;                                ///< updates, seconds, epochs or tokens, by kind
  long long keep = 2;                                    ///< newest checkpoints that stay
  bool asynchronous = false;                             ///< training stands still for a copy in host memory alone
  long long mean_time_between_failures = 0;              ///< seconds
  bool best = false;                                     ///< the best one stays beside the newest
  checkpoint::metric metric = checkpoint::metric::none;  ///< what the best one is judged by
  long long keep_every = 0;                              ///< checkpoints of multiples of so many updates stay; 0: none
  bool on_best = false;                                  ///< a best evaluation is saved at once
  bool drop_when_busy = false;                           ///< a save that is due while another is written is dropped
  long long failures = 3;                                ///< saves that fail in a row and end the run
  long long best_count = 0;                              ///< so many of the best stay; 0: one, where any does
  bool on_exception = false;                             ///< an exception that ends the run is followed by a requested save
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
    to.best_count = Count == 0 ? -1 : Count;  // that is S24's, which takes 0 for no count
  }
};
struct on_exception : sets<&settings::on_exception, true> {};
struct by_training_loss : sets<&settings::metric, metric::training_loss> {};
struct by_evaluation_loss : sets<&settings::metric, metric::evaluation_loss> {};

/// Judges checkpoints by what the slot evaluation monitors.
using by_evaluation = by_evaluation_loss;

constexpr settings at(epochs interval) { return {.kind = kind::every_epochs, .interval = interval.count}; }
constexpr settings at(tokens interval) { return {.kind = kind::every_tokens, .interval = interval.count}; }
constexpr settings at(steps interval) { return {.kind = kind::every_steps, .interval = interval.count}; }
constexpr settings at(seconds interval) { return {.kind = kind::every_seconds, .interval = interval.count}; }
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
