// A run's interface to the watchdog in timeout/run_watchdog.hpp.
#pragma once

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

/// Builds the watchdog's target. `options` must outlive the watchdog; `directory` may be null. Throws error (E12) if heartbeats are
/// required and the world has no store for them.
watchdog_target make_watchdog_target(timeout::settings const& limits, run_directory const* directory,
                                     trainer_options const& options, world_of_ranks const& world,
                                     std::function<std::optional<run_phase>()> const& phase);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/watchdog_target.ipp>
#endif
