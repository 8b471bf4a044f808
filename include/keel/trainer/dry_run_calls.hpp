// Member functions of a trainer or part that run an experiment and leave the run unchanged: dry runs, a preflight, replays.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <keel/core/batch.hpp>
#include <keel/data/batch_source.hpp>
#include <keel/data/no_batches.hpp>
#include <keel/determinism/seed.hpp>
#include <keel/rule/not_implemented.hpp>
#include <keel/rule/reject_call.hpp>
#include <keel/schedule/lr_range_test.hpp>
#include <keel/step/typed_step.hpp>
#include <keel/trainer/dry_run.hpp>
#include <keel/trainer/epoch.hpp>
#include <keel/trainer/options.hpp>
#include <keel/trainer/preflight_result.hpp>
#include <keel/trainer/replay.hpp>
#include <type_traits>

namespace keel::detail::inline KEEL_MODE {

/// The arguments of a preflight, with the type of its step.
template <class Step>
struct preflight_subject : dry_run_subject {
  using step_type = Step;
};

/// Runs the checks of keel/diagnose/preflight.hpp. Compile error if the program does not include that header, which this one must not
/// depend on.
template <class Subject, class Batches, class LossOf>
preflight_result run_preflight_if_included(Subject const& subject, Batches& batches, LossOf& loss_of,
                                           preflight_options const& options) {
  constexpr bool is_included = requires { preflight_of(subject, batches, loss_of, options); };
  static_assert(is_included, "preflight() needs a header that is not included. Fix: #include <keel/diagnose/preflight.hpp>.");
  if constexpr (is_included) return preflight_of(subject, batches, loss_of, options);
  return {};
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Dry runs, preflight and replays, which keel::trainer and keel::part inherit. Afterwards the run is unchanged: the models, optimizers and
/// registered state of all parts, random numbers, counters and files. All throw error (E12) while any model of the run has an open update.
/// `loss_of` is the same as for an update. `Owner` derives from this class, and its member dry_run_subject() returns the step and the loop
/// that its dry runs use.
template <class Owner, class Step>
class dry_run_calls {
 public:
  /// Trains with learning rates that increase from low to high, and reports how the loss responds. `batches` are read repeatedly if
  /// necessary; a single-pass range is rejected (U32). Throws error (E12) for invalid options.
  template <class Batches, class LossOf>
  lr_range_result lr_range_test(Batches&& batches, LossOf&& loss_of, lr_range_options const& options = {}) {
    if constexpr (!detail::is_repeatable<std::remove_reference_t<Batches>>) {
      detail::reject_call<rule::U32, Batches>();
      return {};
    } else {
      auto const of = subject();
      auto const trying = of.loop.enter_dry_run();
      return detail::dry_run<Step>(of).lr_range_test(batches, loss_of, options);
    }
  }
  /// Trains on one batch at the parameter groups' learning rates. Throws error (E12) for fewer than one update.
  template <class Batch, class LossOf>
  overfit_result overfit_one_batch(Batch const& batch, LossOf&& loss_of, std::int64_t updates = 200) {
    auto const of = subject();
    auto const trying = of.loop.enter_dry_run();
    return detail::dry_run<Step>(of).overfit_one_batch(batch, loss_of, updates);
  }
  /// Checks model, data and recipe for problems that would waste the run; takes about a minute. keel/diagnose/preflight.hpp lists the
  /// checks; include it or keel/keel.hpp. If a check throws, the message becomes its result. Throws data_error (E06) if there are no
  /// batches.
  template <class Batches, class LossOf>
    requires(!std::same_as<std::remove_cvref_t<LossOf>, preflight_options>)
  preflight_result preflight(Batches&& batches, LossOf&& loss_of, preflight_options const& options = {}) {
    if constexpr (!detail::is_repeatable<std::remove_reference_t<Batches>>) {
      return detail::reject_call<rule::U32, Batches>(), preflight_result();
    } else {
      detail::preflight_subject<Step> of{subject()};
      auto const trying = of.loop.enter_dry_run();
      if (of.step.facts().is_length_pending)
        of.length = length_of(detail::with_epoch_length(of.loop.options(), batches), of.step.current_config().accumulate.count);
      return detail::run_preflight_if_included(of, batches, loss_of, options);
    }
  }

  /// Same as the overload above, for a loss function without a batch. Checks that need a batch are not applicable.
  template <class LossOf>
    requires(std::invocable<std::remove_reference_t<LossOf>&> && !batch_source<std::remove_reference_t<LossOf>>)
  preflight_result preflight(LossOf&& loss_of, preflight_options const& options = {}) {
    return preflight(no_batches(), detail::without_batch<std::remove_reference_t<LossOf>&>{loss_of}, options);
  }

  /// Reruns the update of an incident from the folder `incident`, which keel::incident::keep wrote. If `loss_of` accepts several batch
  /// types, call `run.replay<batch_type>(..)`. Throws checkpoint_error if the incident belongs to another run or part (E03), or is damaged
  /// (E05).
  template <class Batch = void, class LossOf>
  replay_result replay(std::filesystem::path const& incident, LossOf&& loss_of, replay_options const& options = {}) {
    return replay_of<Batch>(incident, loss_of, [&](auto& again) { return again.run(options); });
  }
  /// Reruns the update several times, each time with one change. A change that makes the update finite points to the cause.
  template <class Batch = void, class LossOf>
  narrow_down_result narrow_down(std::filesystem::path const& incident, LossOf&& loss_of) {
    return replay_of<Batch>(incident, loss_of, [](auto& again) { return again.run_experiments(); });
  }

 private:
  friend Owner;
  dry_run_calls() = default;
  dry_run_calls(dry_run_calls const&) = default;
  dry_run_calls& operator=(dry_run_calls const&) = default;
  ~dry_run_calls() = default;

  detail::dry_run_subject subject() { return static_cast<Owner&>(*this).dry_run_subject(); }

  template <class Batch, class LossOf, class Use>
  auto replay_of(std::filesystem::path const& incident, LossOf& loss_of, Use const& use) {
    if constexpr (std::is_void_v<Batch> && std::invocable<LossOf&>) {
      detail::without_batch<LossOf&> adapted{loss_of};
      return replay_of<no_batch>(incident, adapted, use);
    } else {
      deterministic_scope const deterministic(Step::configured.determinism.kind == determinism::kind::strict);
      auto const of = subject();
      auto const trying = of.loop.enter_dry_run();
      return detail::replay_incident<Batch>(of, incident, loss_of, use);
    }
  }
};

}  // namespace keel::inline KEEL_MODE
