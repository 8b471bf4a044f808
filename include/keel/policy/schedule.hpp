// schedule: the learning rate as a factor of each parameter group's own, by the number of updates that were applied.
//   constant, given            the default: keel writes no rate, and set_lr() or torch::optim::StepLR count;
//                              constant_with<warmup<D>> after a linear rise.
//   linear<..>                 rises, then falls in a line.
//   cosine<..>                 rises, then falls along half a cosine (Loshchilov & Hutter 2017). The usual one.
//   polynomial<power<P>, ..>   rises, then falls as the P-th power of what is left of the run. power<1.0> is a line, and larger
//                              powers spend more of the run at low rates.
//   warmup_stable_decay<..>    rises, stays, falls in a line over the last decay<D> (Hu et al. 2024, "MiniCPM"); the run
//                              can be prolonged from its stable part.
//   one_cycle<..>              rises from start_ratio<0.04> along half a cosine over its warm-up (0.3 of the total where none
//                              is given), whose last update has the highest rate, and falls along another to the last update
//                              (Smith & Topin 2018). For short runs at high rates.
//   These five fall to their end and need the length of the run. The others do not:
//   inverse_root<warmup<D>>    rises, then falls with the square root of the updates: update n, counted from 1, has the highest
//                              rate times sqrt(D / n) (Vaswani et al. 2017, "Attention Is All You Need").
//   exponential<lowered_by<F>> multiplies the rate by F each update; with interval<D> by as much over D updates, smoothly.
//   step_decay<interval<D>>    multiplies the rate by lowered_by<0.1> after each interval<D>. What vision recipes use.
//   multi_step<milestones<..>> multiplies it by lowered_by<0.1> at each of up to eight updates of the run.
//   warm_restarts<cycle<D>>    falls along half a cosine over D updates and begins again at the highest rate, each cycle
//                              cycle_factor<1> times as long as the one before (Loshchilov & Hutter 2017, "SGDR"). Each cycle's
//                              end is a model that is ready for use.
//   plateau<..>                after each patience<D> whose mean loss is not below the best one's by the share threshold<0.0>,
//                              multiplies the rate by lowered_by<0.5>; with evaluations<N> after N evaluations in a row of
//                              which none is better than the best so far. Where the length of the run is not known.
// Options: warmup<D> or warmup_ratio<R> (L01), total<D> (else the trainer's options, or options.epochs and the batches), decay<D>, min_ratio<R> or
// min_lr<L>, and those above. D is `100_steps`. What follows a warm-up begins with its end; total and milestones count from the
// first update of the run, as its record does.
// Left out: cycling the momentum along with the rate, which AdamW's second moment makes pointless; triangles between two rates,
// which one_cycle replaced; restarts at lower and lower rates, and chains of schedules, which a custom policy says in a
// line; schedules by epoch or by attempted step, which drift from the updates that really happened (N08).
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

/// The most milestones that one schedule has.
inline constexpr int max_milestones = 8;

struct settings {
  schedule::kind kind = kind::constant;
  long long warmup = 0;        ///< updates
  double warmup_ratio = 0.0;   ///< of the total
  long long total = 0;         ///< updates; 0: the length of the run
  long long decay = 0;         ///< updates at the end; warmup_stable_decay only
  double min_ratio = 0.0;      ///< lowest learning rate over the highest
  double min_lr = 0.0;         ///< lowest learning rate, absolute; 0: min_ratio decides
  double start_ratio = 0.0;    ///< first learning rate over the highest; one_cycle only
  long long patience = 0;      ///< updates whose losses are averaged and compared; plateau only
  double lowered_by = 0.0;     ///< factor on the rate each time that it is lowered
  double threshold = 0.0;      ///< share of the best loss or evaluation by which a better one must be better; plateau only
  long long evaluations = 0;   ///< in a row without a better one; 0: losses are judged; plateau only
  long long interval = 0;      ///< updates that lower the rate once; step_decay and exponential only
  double power = 0.0;          ///< of what is left of the run; polynomial only
  long long cycle = 0;         ///< updates of the first one; warm_restarts only
  long long cycle_factor = 0;  ///< length of a cycle over that of the one before; warm_restarts only
  int milestone_count = 0;     ///< as many as were given, also where they do not fit (L20)
  long long milestones[max_milestones] = {};  ///< updates of the run; multi_step only
  short_name own{};                           ///< the name of a custom schedule, which a recipe fills in
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
/// The patience of a plateau that judges evaluations, in place of one in updates.
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
/// Updates of the run after each of which multi_step lowers the rate; at most eight.
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

/// What a policy's options start from.
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

/// `constant` with options: after a linear rise, warmup<D>, the program's rate.
template <option... Options>
struct constant_with : shape<kind::constant, Options...> {};
using constant = constant_with<>;
/// The program owns the rate: what `constant` does, in the words of a recipe whose program moves it.
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

/// Falls until the last update of its length; the others fall by themselves or not at all.
constexpr bool falls_to_its_end(kind k) {
  return k == kind::linear || k == kind::cosine || k == kind::warmup_stable_decay || k == kind::one_cycle ||
         k == kind::polynomial;
}
/// Needs to know how long the run is.
constexpr bool depends_on_length(settings const& s) { return falls_to_its_end(s.kind) || s.warmup_ratio != 0.0; }

/// Otherwise the program sets the rates.
constexpr bool changes_the_rate(settings const& s) {
  return s.kind != kind::constant || s.warmup != 0 || s.warmup_ratio != 0.0;
}

/// The rate depends on what evaluations come to, which the schedule then has to be given.
constexpr bool judges_evaluations(settings const& s) { return s.kind == kind::plateau && s.evaluations > 0; }

/// The warm-up of one_cycle where none is given, as a share of the total.
inline constexpr double one_cycle_warmup = 0.3;

/// Updates of the warm-up of a run of `total`, not rounded.
constexpr double warmup_of(settings const& s, long long total) {
  bool const has_warmup = s.warmup != 0 || s.warmup_ratio != 0.0;
  double const ratio = s.kind == kind::one_cycle && !has_warmup ? one_cycle_warmup : s.warmup_ratio;
  return ratio > 0.0 ? ratio * static_cast<double>(total) : static_cast<double>(s.warmup);
}

/// The same in whole updates: 0.29 of 100 are 29, although the product of the doubles is a little less.
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
    // As keel::schedule::evaluations: they take the place of the default patience.
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
