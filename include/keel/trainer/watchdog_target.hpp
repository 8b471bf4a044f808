// What the watch of timeout/run_watchdog.hpp has to know of a run.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/metrics/phase_times.hpp>
#include <keel/policy/timeout.hpp>
#include <keel/timeout/run_watchdog.hpp>
#include <keel/trainer/open_directory.hpp>
#include <keel/trainer/options.hpp>
#include <optional>
#include <string>

namespace keel::detail::inline KEEL_MODE {

/// Where a run of several parts is, whose parts have a clock each; for another thread.
class shown_phase final : public phase_listener {
 public:
  /// Calls `moved` where the update of a part has ended.
  explicit shown_phase(std::function<void()> moved) : moved_(std::move(moved)) {}
  run_phase now() const { return now_.load(std::memory_order_relaxed); }
  void phase_began(run_phase which) override { now_.store(which, std::memory_order_relaxed); }
  void phase_ended(run_phase which) override {
    now_.store(run_phase::data, std::memory_order_relaxed);
    if (which == run_phase::update) moved_();
  }

 private:
  std::function<void()> moved_;
  std::atomic<run_phase> now_{run_phase::data};
};

/// All of them outlive the watch; `directory` may be null. Throws error (E12) for a heartbeat of ranks that have no place for it.
watchdog_target make_watchdog_target(timeout::settings const& limits, run_directory const* directory,
                                     trainer_options const& options, world_of_ranks const& world,
                                     std::function<std::optional<run_phase>()> const& phase);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/watchdog_target.ipp>
#endif
