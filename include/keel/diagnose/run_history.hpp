// What a run directory says of its run: the lines of metrics.jsonl as curves, with what a rollback or a restart abandoned apart, and
// the events. For readers that a run does not need; a directory whose run is under way, was killed or lost a file is read as far as
// it goes.
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

/// A value of a line, at the update that the line ends with; NaN and infinities as they were written. The times of an update, "ms" and
/// "time.PHASE", are means over those of the line.
struct curve_point {
  std::int64_t update;
  double value;
  std::int64_t attempt = 0;  ///< that the line ends with; 0: not known
};

/// A key of metrics.jsonl over the run; inner keys after a point, such as "memory.forward". Lines of evaluations stand in the events.
struct run_curve {
  std::vector<curve_point> kept;                    ///< the run as it is, by update
  std::vector<std::vector<curve_point>> abandoned;  ///< futures that a rollback or a restart left, in their order
};

struct run_event {
  std::string name;
  std::int64_t update = 0;
  double time = 0.0;       ///< seconds since 1970
  nlohmann::json details;  ///< what else its line has
};

/// The batches of an update, or of the updates of a line.
struct seen_batch {
  std::int64_t update;
  std::int64_t attempt;
  std::int64_t epoch;
  std::string checksum;
};

/// A profile of the run directory.
struct run_profile {
  std::string name;     ///< of its folder
  std::string summary;  ///< summary.md
  std::string figure;   ///< of trace.json, for a page; empty where it cannot be read or has more than 64 MiB
};

struct run_history {
  std::string name;  ///< of the directory
  std::map<std::string, run_curve> curves;
  std::map<std::string, run_curve> layers;  ///< of layers.jsonl, as "grad_norm/NAME"
  std::vector<run_event> events;            ///< since the last run in this directory began
  std::vector<seen_batch> batches;          ///< of the lines that are not abandoned, where the record has their checksums
  std::vector<run_profile> profiles;        ///< the newest four
  nlohmann::json recipe;                    ///< null where there is none
  std::int64_t updates = 0;                 ///< applied, at the last line
  std::int64_t skipped = 0;                 ///< at the last line
  std::int64_t unreadable = 0;              ///< lines that are not JSON, as a kill leaves one
  std::uint64_t bytes = 0;                  ///< of metrics.jsonl
  std::string metrics;                      ///< the file as it is; empty where it has more than 8 MiB
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// For a terminal, on which a record's text moves no cursor and changes no colour: bytes below space but newlines become ?.
std::string without_control_codes(std::string text);

/// A number, also one of those that JSON lacks; a truth is 1 or 0. Nothing for anything else.
std::optional<double> number_in(nlohmann::json const& value);

/// At most 2^53, up to where a double tells neighbours apart; 0 where there is none.
std::int64_t integer_in(nlohmann::json const& object, char const* key);

/// A line of layers.jsonl.
void add_layers(run_history& to, nlohmann::json const& line);

/// The points of updates above `update`, and of attempts above `attempt`, become a future that was left.
void abandon_after(std::map<std::string, run_curve>& curves, std::int64_t update, std::int64_t attempt);

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Throws file_error (E02) for a directory with neither metrics.jsonl nor events.jsonl, or one that cannot be read.
run_history read_run_history(std::filesystem::path const& run_directory);

/// The event that ended the run, unless it went on after it; null: none did.
run_event const* ending_of(run_history const& run);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/run_history.ipp>
#endif
