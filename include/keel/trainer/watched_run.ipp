// The bodies of watched_run.hpp.
#pragma once

#include <keel/collective/left_record.hpp>
#include <keel/collective/recent_collectives.hpp>
#include <keel/core/error.hpp>
#include <keel/trainer/signals.hpp>
#include <keel/trainer/watched_run.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY watched_run watched(timeout::settings const& limits, run_directory const* directory, trainer_options const& options,
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

#include <keel/libtorch/detail/body_end.inc>
