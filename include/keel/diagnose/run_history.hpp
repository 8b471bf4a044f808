// Reads a run directory: the lines of metrics.jsonl as curves, with the updates that a rollback or a restart abandoned kept apart, and the
// events. Works without a trainer; an incomplete directory of a running or killed run is read as far as possible.
#pragma once

#include <cstdint>
#include <filesystem>
#include <keel/libtorch/mode.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// A value of a line, at the line's last update; NaN and infinities as they were written. Times, "ms" and "time.PHASE", are means over the
/// line's updates.
struct curve_point {
  std::int64_t update;
  double value;
  std::int64_t attempt = 0;  ///< last attempt of the line; 0 if unknown
};

/// A key of metrics.jsonl over the run; nested keys are joined by a dot, such as "memory.forward". Evaluations are in the events.
struct run_curve {
  std::vector<curve_point> kept;                    ///< points of the run as it is, by update
  std::vector<std::vector<curve_point>> abandoned;  ///< points that a rollback or a restart abandoned, in chronological order
};

struct run_event {
  std::string name;
  std::int64_t update = 0;
  double time = 0.0;       ///< seconds since 1970
  nlohmann::json details;  ///< the other fields of its line
};

/// The batches of an update, or of all updates of a line.
struct seen_batch {
  std::int64_t update;
  std::int64_t attempt;
  std::int64_t epoch;
  std::string checksum;
};

/// A profile in the run directory.
struct run_profile {
  std::string name;     ///< the name of its folder
  std::string summary;  ///< the contents of summary.md
  std::string figure;   ///< trace.json as a figure; empty if it cannot be read or is larger than 64 MiB
};

struct run_history {
  std::string name;  ///< the name of the directory
  std::map<std::string, run_curve> curves;
  std::map<std::string, run_curve> layers;  ///< curves of layers.jsonl, such as "grad_norm/NAME"
  std::vector<run_event> events;            ///< events since the last run in this directory began
  std::vector<seen_batch> batches;          ///< batches of lines that were not abandoned, if the record has their checksums
  std::vector<run_profile> profiles;        ///< the newest four profiles
  nlohmann::json recipe;                    ///< null if there is none
  std::int64_t updates = 0;                 ///< applied updates, at the last line
  std::int64_t skipped = 0;                 ///< skipped updates, at the last line
  std::int64_t unreadable = 0;              ///< number of lines that are not JSON, such as a line cut off by a kill
  std::uint64_t bytes = 0;                  ///< size of metrics.jsonl
  std::string metrics;                      ///< contents of metrics.jsonl; empty if it is larger than 8 MiB
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Replaces control codes except newlines with '?', so that the text of a record cannot control a terminal.
std::string without_control_codes(std::string text);

/// Returns a number, including NaN and infinities, which JSON writes as strings; a bool is 1 or 0. Returns nullopt for any other type.
std::optional<double> number_in(nlohmann::json const& value);

/// Returns an integer of at most 2^53, above which doubles are not exact; 0 if there is none.
std::int64_t integer_in(nlohmann::json const& object, char const* key);

/// Adds a line of layers.jsonl.
void add_layers(run_history& to, nlohmann::json const& line);

/// Moves the points of updates above `update`, and of attempts above `attempt`, to the abandoned ones.
void abandon_after(std::map<std::string, run_curve>& curves, std::int64_t update, std::int64_t attempt);

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Reads a run directory. Throws file_error (E02) if it has neither metrics.jsonl nor events.jsonl or cannot be read.
run_history read_run_history(std::filesystem::path const& run_directory);

/// Returns the event that ended the run; nullptr if there is none or the run continued after it.
run_event const* ending_of(run_history const& run);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/run_history.ipp>
#endif
