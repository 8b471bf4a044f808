// Incidents of a run directory. Each is a folder `incidents/attempt-000000123` with a checkpoint from just before a non-finite update, the
// update's batches and random state, a readable incident.json, and the last 200 lines of the record.
#pragma once

#include <cstdint>
#include <filesystem>
#include <keel/checkpoint/snapshot.hpp>
#include <keel/step/update_events.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Returns the content of incident.json: reason, origin, settings, losses and gradients of the update.
nlohmann::ordered_json describe_incident(event::incident const& event, std::int64_t attempt);

/// Adds the update's batches, their random states and the description to a snapshot of the run from before the update.
void add_incident(snapshot& to, event::incident const& event, nlohmann::ordered_json const& description);

struct written_incident {
  std::filesystem::path path;
  std::uint64_t bytes = 0;
  std::string removal_failure;  ///< why files of older incidents could not be removed; empty: all were
};

/// Writes an incident and removes old ones, so that the newest `most` remain. Keeps files that a user added to a removed folder. Throws
/// file_error (E02), and data_error (E05) for a batch that cannot be written; no partial incident remains then.
written_incident write_incident(file_system& files, std::filesystem::path const& run_directory, std::int64_t attempt,
                                long long most, snapshot const& content, nlohmann::ordered_json description);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/run_incidents.ipp>
#endif
