// Definitions for watchdog_target.hpp.
#pragma once

#include <keel/collective/recent_collectives.hpp>
#include <keel/collective/write_rank_record.hpp>
#include <keel/core/error.hpp>
#include <keel/trainer/signals.hpp>
#include <keel/trainer/watchdog_target.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY watchdog_target make_watchdog_target(timeout::settings const& limits, run_directory const* directory,
                                               trainer_options const& options, world_of_ranks const& world,
                                               std::function<std::optional<run_phase>()> const& phase) {
  if (limits.heartbeat_interval > 0 && !world.supports_heartbeats())
    throw error("E12",
                "keel::timeout::heartbeat needs a c10d store, and this world has none. Pass one to keel::over(group, timeout, "
                "store), or remove the heartbeat.");
  return {
      .directory = directory != nullptr ? root_of(*directory) : std::filesystem::path(),
      .rank = world.rank(),
      .ranks = world.size(),
      .phase = phase,
      .signal = [&options] { return options.stop_on_signals ? process_signals::peek_pending() : 0; },
      .notify_ranks =
          [world, directory = directory != nullptr ? root_of(*directory) : std::filesystem::path()](std::string const& why) {
            world.post_abort_message(why);
            write_rank_record(world, directory, why);
          },
      .collective = [world] { return describe_current_collective(world.last_collectives()); },
      .exchange_heartbeats = [world](std::int64_t local) { return world.exchange_heartbeats(local); }};
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
