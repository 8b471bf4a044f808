// What the watch of timeout/run_watch.hpp has to know of a run.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <keel/collective/left_record.hpp>
#include <keel/collective/recent_collectives.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/core/error.hpp>
#include <keel/metrics/phase_times.hpp>
#include <keel/policy/timeout.hpp>
#include <keel/timeout/run_watch.hpp>
#include <keel/trainer/open_directory.hpp>
#include <keel/trainer/options.hpp>
#include <keel/trainer/signals.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

/// Of a recipe that limits nothing it is empty.
template <bool IsWatched>
using watch_if = std::conditional_t<IsWatched, run_watch, no_watch>;

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
inline watched_run watched(timeout::settings const& limits, run_directory const* directory, trainer_options const& options,
                           world_of_ranks const& world, std::function<std::optional<run_phase>()> const& phase) {
  if (limits.heartbeat_interval > 0 && !world.leaves_signs())
    throw error("E12",
                "keel::timeout::heartbeat leaves its signs in the store of the ranks, and this world has none. Give it one, "
                "keel::over(group, timeout, store), or leave the heartbeat out.");
  return {
      .directory = directory != nullptr ? root_of(*directory) : std::filesystem::path(),
      .rank = world.rank(),
      .ranks = world.size(),
      .phase = phase,
      .signal = [&options] { return options.stop_on_signals ? process_signals::pending_now() : 0; },
      .tell_ranks =
          [world, directory = directory != nullptr ? root_of(*directory) : std::filesystem::path()](std::string const& why) {
            world.leave_last_words(why);
            leave_record(world, directory, why);
          },
      .collective = [world] { return words_of_last(world.last_collectives()); },
      .exchange_signs = [world](std::int64_t mine) { return world.exchange_signs(mine); }};
}

}  // namespace keel::detail::inline KEEL_MODE
