// The incidents of a run directory: each a folder `incidents/attempt-000000123` that is a checkpoint of just before an update that was
// not finite, with the update's batches and random state in it, incident.json for a reader, and the last 200 lines of the record.
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

/// What incident.json says: why, where it began, with which settings it ran, what came of it.
nlohmann::ordered_json describe_incident(event::incident const& event, std::int64_t attempt);

/// Puts the batches of the update, their random states and the description into a snapshot of the run before it.
void add_incident(snapshot& to, event::incident const& event, nlohmann::ordered_json const& description);

struct written_incident {
  std::filesystem::path path;
  std::uint64_t bytes = 0;
  std::string removal_failure;  ///< why something of older ones stays that should go; empty: nothing does
};

/// Writes one; of older ones the newest stay, `most` with this one, and what a person put into the folder of an older one. Throws file_error (E02),
/// data_error (E05) for a batch that no file holds; then nothing of it is there.
written_incident write_incident(file_system& files, std::filesystem::path const& run_directory, std::int64_t attempt,
                                long long most, snapshot const& content, nlohmann::ordered_json description);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/run_incidents.ipp>
#endif
