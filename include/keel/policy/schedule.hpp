// schedule: the learning rate as a factor on each parameter group's own rate, as a function of the number of applied updates.
//   constant, given            the default: keel writes no rate, so that set_lr() or torch::optim::StepLR take effect.
//                              constant_with<warmup<D>> adds a linear warm-up.
//   linear<..>                 rises, then falls linearly.
//   cosine<..>                 rises, then falls along half a cosine (Loshchilov & Hutter 2017). The most common choice.
//   polynomial<power<P>, ..>   rises, then falls with the P-th power of the remaining fraction of the run. power<1.0> is linear; larger
//                              powers spend more of the run at low rates.
//   warmup_stable_decay<..>    rises, stays constant, and falls linearly over the last decay<D> (Hu et al. 2024, "MiniCPM"). The run can be
//                              extended from its stable part.
//   one_cycle<..>              rises from start_ratio<0.04> along half a cosine over its warm-up (by default 0.3 of the total), whose last
//                              update has the highest rate, and falls along another half until the last update (Smith & Topin 2018). For
//                              short runs at high rates.
//   These five end at their lowest rate and need the length of the run. The others do not:
//   inverse_root<warmup<D>>    rises, then falls with the inverse square root of the updates: update n, counted from 1, has the highest
//                              rate times sqrt(D / n) (Vaswani et al. 2017, "Attention Is All You Need").
//   exponential<lowered_by<F>> multiplies the rate by F every update; with interval<D>, smoothly by F over D updates.
//   step_decay<interval<D>>    multiplies the rate by lowered_by<0.1> after each interval<D>. Common in vision recipes.
//   multi_step<milestones<..>> multiplies the rate by lowered_by<0.1> after each of up to eight milestones, which are updates of the run.
//   warm_restarts<cycle<D>>    falls along half a cosine over D updates and restarts at the highest rate. Each cycle is cycle_factor<1>
//                              times as long as the previous one (Loshchilov & Hutter 2017, "SGDR"). The model is usable at the end of each
//                              cycle.
//   plateau<..>                multiplies the rate by lowered_by<0.5> after each patience<D> whose mean loss is not below the best one by
//                              the fraction threshold<0.0>. With evaluations<N> it does so after N consecutive evaluations without a new
//                              best. For runs of unknown length.
// Options: warmup<D> or warmup_ratio<R> (L01), total<D> (default: from the trainer's options, or from options.epochs and the batches),
// decay<D>, min_ratio<R> or min_lr<L>, and those above. D is `100_steps`. The part after the warm-up begins at the end of the warm-up.
// total and milestones count from the first update of the run, as the record does.
// Left out: cycling the momentum with the rate, which AdamW's second moment makes pointless; triangles between two rates, which one_cycle
// replaced; restarts at decreasing rates and chains of schedules, which a custom policy expresses in one line; schedules by epoch or by
// attempted step, which drift from the applied updates (N08).
#pragma once

#include <keel/policy/duration.hpp>
#include <keel/policy/name.hpp>
#include <keel/policy/number.hpp>
#include <keel/policy/slot.hpp>

namespace keel::slot {
struct schedule;
}

namespace keel::schedule {

enum class kind : unsigned char {
  constant,
  linear,
  cosine,
  warmup_stable_decay,
  one_cycle,
  plateau,
  polynomial,
  inverse_root,
  exponential,
  step_decay,
  multi_step,
  warm_restarts,
  custom
};

/// Maximum number of milestones of one schedule.
inline constexpr int max_milestones = 8;

struct settings {
  schedule::kind kind = kind::constant;
  long long warmup = 0;        ///< updates
  double warmup_ratio = 0.0;   ///< fraction of the total
  long long total = 0;         ///< updates; 0: the length of the run
  long long decay = 0;         ///< updates at the end; warmup_stable_decay only
  double min_ratio = 0.0;      ///< ratio of the lowest to the highest learning rate
  double min_lr = 0.0;         ///< lowest learning rate, absolute; 0: min_ratio decides
  double start_ratio = 0.0;    ///< ratio of the first to the highest learning rate; one_cycle only
  long long patience = 0;      ///< updates whose losses are averaged and compared; plateau only
  double lowered_by = 0.0;     ///< factor that lowers the rate
  double threshold = 0.0;      ///< fraction by which a loss or evaluation must be better than the best one; plateau only
  long long evaluations = 0;   ///< consecutive evaluations without a new best; 0: losses are judged; plateau only
  long long interval = 0;      ///< updates after which the rate is lowered; step_decay and exponential only
  double power = 0.0;          ///< exponent of the remaining fraction of the run; polynomial only
  long long cycle = 0;         ///< updates of the first cycle; warm_restarts only
  long long cycle_factor = 0;  ///< ratio of a cycle's length to that of the previous one; warm_restarts only
  int milestone_count = 0;     ///< number of milestones given, possibly more than fit (L20)
  long long milestones[max_milestones] = {};  ///< updates of the run; multi_step only
  short_name own{};                           ///< name of a custom schedule, filled in by the recipe
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <class Option>
concept option = option_of<Option, settings>;

template <steps Duration>
struct warmup : sets<&settings::warmup, Duration.count> {};
template <number OfTotal>
struct warmup_ratio : sets<&settings::warmup_ratio, OfTotal> {};
template <steps Duration>
struct total : sets<&settings::total, Duration.count> {};
template <steps Duration>
struct decay : sets<&settings::decay, Duration.count> {};
template <number Ratio>
struct min_ratio : sets<&settings::min_ratio, Ratio> {};
template <number LearningRate>
struct min_lr : sets<&settings::min_lr, LearningRate> {};

template <number Ratio>
struct start_ratio : sets<&settings::start_ratio, Ratio> {};
template <steps Duration>
struct patience : sets<&settings::patience, Duration.count> {};
/// The patience of a plateau that judges evaluations; replaces a patience in updates.
template <long long Count>
struct evaluations {
  static constexpr void apply(settings& to) {
    to.evaluations = Count;
    to.patience = 0;
  }
};
template <number Factor>
struct lowered_by : sets<&settings::lowered_by, Factor> {};
template <number Share>
struct threshold : sets<&settings::threshold, Share> {};
template <steps Duration>
struct interval : sets<&settings::interval, Duration.count> {};
template <number Exponent>
struct power : sets<&settings::power, Exponent> {};
template <steps Duration>
struct cycle : sets<&settings::cycle, Duration.count> {};
template <long long Factor>
struct cycle_factor : sets<&settings::cycle_factor, Factor> {};
/// Updates of the run after which multi_step lowers the rate; at most eight.
template <steps... Updates>
struct milestones {
  static constexpr void apply(settings& to) {
    for (long long& one : to.milestones) one = 0;
    to.milestone_count = 0;
    ((to.milestone_count < max_milestones ? void(to.milestones[to.milestone_count] = Updates.count) : void(),
      ++to.milestone_count),
     ...);
  }
};

/// Returns the settings to which a policy's options are applied.
constexpr settings start_of(kind k) {
  settings s{.kind = k};
  if (k == kind::one_cycle) s.start_ratio = 0.04;
  if (k == kind::plateau) {
    s.patience = 1000;
    s.lowered_by = 0.5;
  }
  if (k == kind::step_decay || k == kind::multi_step) s.lowered_by = 0.1;
  if (k == kind::exponential) s.interval = 1;
  if (k == kind::warm_restarts) s.cycle_factor = 1;
  return s;
}

/// The base of keel's schedules.
template <kind Kind, option... Options>
struct shape : configures<slot::schedule, start_of(Kind), Options...> {};

/// `constant` with options: a linear warm-up to the program's rate.
template <option... Options>
struct constant_with : shape<kind::constant, Options...> {};
using constant = constant_with<>;
/// The program owns the rate. The same as `constant`, for a recipe whose program changes the rate.
using given = constant;
template <option... Options>
struct linear : shape<kind::linear, Options...> {};
template <option... Options>
struct cosine : shape<kind::cosine, Options...> {};
template <option... Options>
struct warmup_stable_decay : shape<kind::warmup_stable_decay, Options...> {};
template <option... Options>
struct one_cycle : shape<kind::one_cycle, Options...> {};
template <option... Options>
struct plateau : shape<kind::plateau, Options...> {};
template <option... Options>
struct polynomial : shape<kind::polynomial, Options...> {};
template <option... Options>
struct inverse_root : shape<kind::inverse_root, Options...> {};
template <option... Options>
struct exponential : shape<kind::exponential, Options...> {};
template <option... Options>
struct step_decay : shape<kind::step_decay, Options...> {};
template <option... Options>
struct multi_step : shape<kind::multi_step, Options...> {};
template <option... Options>
struct warm_restarts : shape<kind::warm_restarts, Options...> {};

/// True if the schedule reaches its lowest rate at the end of its length.
constexpr bool falls_to_its_end(kind k) {
  return k == kind::linear || k == kind::cosine || k == kind::warmup_stable_decay || k == kind::one_cycle ||
         k == kind::polynomial;
}
/// True if the schedule needs the length of the run.
constexpr bool depends_on_length(settings const& s) { return falls_to_its_end(s.kind) || s.warmup_ratio != 0.0; }

/// True if the schedule sets the rates; otherwise the program does.
constexpr bool changes_the_rate(settings const& s) {
  return s.kind != kind::constant || s.warmup != 0 || s.warmup_ratio != 0.0;
}

/// True if the rate depends on the results of evaluations, which the schedule then needs.
constexpr bool judges_evaluations(settings const& s) { return s.kind == kind::plateau && s.evaluations > 0; }

/// Default warm-up of one_cycle, as a fraction of the total.
inline constexpr double one_cycle_warmup = 0.3;

/// Returns the number of warm-up updates of a run of `total` updates, not rounded.
constexpr double warmup_of(settings const& s, long long total) {
  bool const has_warmup = s.warmup != 0 || s.warmup_ratio != 0.0;
  double const ratio = s.kind == kind::one_cycle && !has_warmup ? one_cycle_warmup : s.warmup_ratio;
  return ratio > 0.0 ? ratio * static_cast<double>(total) : static_cast<double>(s.warmup);
}

/// Returns the number of warm-up updates, rounded. 0.29 of 100 is 29, although the product of the doubles is slightly less.
constexpr long long warmup_updates(settings const& s, long long total) {
  double const updates = warmup_of(s, total);
  if (!(updates >= 0.0)) return 0;
  return updates < 9e15 ? static_cast<long long>(updates * (1.0 + 1e-12) + 1e-9) : 9'000'000'000'000'000;
}

}  // namespace keel::schedule

namespace keel {

struct slot::schedule : slot_description {
  using settings = keel::schedule::settings;
  using default_policy = keel::schedule::constant;
  static constexpr char const* name = "schedule";
  static constexpr char const* given_twice = "D05";
  static constexpr char const* taken =
      " warmup warmup_ratio total decay min_ratio min_lr start_ratio evaluations patience lowered_by threshold interval power "
      "cycle cycle_factor milestones ";
  static constexpr policy_list<settings, 13> policies() {
    return {{{.name = "constant",
              .start = keel::schedule::start_of(keel::schedule::kind::constant),
              .fields = taken,
              .typed = "constant"},
             {"linear", keel::schedule::start_of(keel::schedule::kind::linear), taken},
             {"cosine", keel::schedule::start_of(keel::schedule::kind::cosine), taken},
             {"warmup_stable_decay", keel::schedule::start_of(keel::schedule::kind::warmup_stable_decay), taken},
             {"one_cycle", keel::schedule::start_of(keel::schedule::kind::one_cycle), taken},
             {"plateau", keel::schedule::start_of(keel::schedule::kind::plateau), taken},
             {"polynomial", keel::schedule::start_of(keel::schedule::kind::polynomial), taken},
             {"inverse_root", keel::schedule::start_of(keel::schedule::kind::inverse_root), taken},
             {"exponential", keel::schedule::start_of(keel::schedule::kind::exponential), taken},
             {"step_decay", keel::schedule::start_of(keel::schedule::kind::step_decay), taken},
             {"multi_step", keel::schedule::start_of(keel::schedule::kind::multi_step), taken},
             {"warm_restarts", keel::schedule::start_of(keel::schedule::kind::warm_restarts), taken},
             {"custom", keel::schedule::start_of(keel::schedule::kind::custom), "*"}}};
  }
  static constexpr void fields(auto& s, auto& field) {
    field.updates("warmup", s.warmup);
    field.number("warmup_ratio", s.warmup_ratio);
    field.updates("total", s.total);
    field.updates("decay", s.decay);
    field.number("min_ratio", s.min_ratio);
    field.number("min_lr", s.min_lr);
    field.number("start_ratio", s.start_ratio);
    field.number("evaluations", s.evaluations);
    // As keel::schedule::evaluations, which replaces the default patience.
    if (s.evaluations != 0) s.patience = 0;
    field.updates("patience", s.patience);
    field.number("lowered_by", s.lowered_by);
    field.number("threshold", s.threshold);
    field.updates("interval", s.interval);
    field.number("power", s.power);
    field.updates("cycle", s.cycle);
    field.number("cycle_factor", s.cycle_factor);
    field.list_of_updates("milestones", s.milestones, s.milestone_count);
    field.name("name", s.own.letters);
  }
};

}  // namespace keel
