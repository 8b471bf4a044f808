// Writes the record of a run: a line of metrics.jsonl per update or interval, events, console output, and values for sinks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <keel/batch_guard/batch_watch.hpp>
#include <keel/config/config.hpp>
#include <keel/core/outcome.hpp>
#include <keel/evaluation/evaluate.hpp>
#include <keel/health/alarm_watch.hpp>
#include <keel/memory/timeline.hpp>
#include <keel/metrics/console.hpp>
#include <keel/metrics/layer_record.hpp>
#include <keel/metrics/metric.hpp>
#include <keel/metrics/sink_thread.hpp>
#include <keel/metrics/slowdown.hpp>
#include <keel/shard/straggler_watch.hpp>
#include <keel/step/update_events.hpp>
#include <keel/trainer/progress.hpp>
#include <keel/trainer/run_event_table.hpp>
#include <keel/trainer/run_events.hpp>
#include <keel/trainer/run_sinks.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

class run_directory;
struct save_report;
struct trainer_options;

class run_log {
 public:
  /// Values of an update that event::update_end does not contain.
  struct figures {
    std::int64_t epoch;
    double learning_rate;  ///< rate of the next update
    std::int64_t skipped;
    double milliseconds;
    std::int64_t rollbacks;
    double operations_per_token;  ///< 0: unknown
    double peak;                  ///< peak of the device, in operations per second; 0: unknown
    std::optional<gpu_state> gpu;
    bool is_late;  ///< the next update is already open
  };

  /// All arguments must outlive the log; `directory` may be null.
  run_log(run_directory* directory, console& console, run_record& record, trainer_options const& options);
  run_log(run_log const&) = delete;
  run_log& operator=(run_log const&) = delete;
  ~run_log() { console_.log_to(nullptr); }

  /// Prints a message on the console only.
  void notice(std::string const& message) { console_.notice(message); }

  /// Writes an event to events.jsonl, if there is a directory, and prints its line. `details`: its fields, an object. If the table lists
  /// `message` and they lack it, the printed line becomes the `message`. `text`: printed instead of the table's line, if not empty.
  void emit(logged_event_id id, std::int64_t update, nlohmann::ordered_json details, std::string text = {});
  void emit(logged_event_id id, std::int64_t update);

  /// Begins the record of a run that is not resumed. Sets an earlier record in the directory aside, and logs the recipe.
  void begin(config const& recipe);
  /// Writes recipe.json, which load_config reads, and passes the recipe to the sinks.
  void write_recipe(config const& recipe);
  /// Records that an exception escaped from the program's own loop. `message`: the error message if a call of the run threw it; empty if
  /// the program's own code did.
  void record_exception_exit(std::int64_t update, std::string const& message) noexcept;
  /// Records that the loop ended inside an update, whose `micro_batches` micro-batches are discarded.
  void partial_update(std::int64_t update, std::int64_t micro_batches);

  /// Writes the line of an incomplete interval. Call at the end of the run and before a rollback.
  void write_rest();

  /// `is_language_model`: micro-batches have more tokens than rows. Sinks then also get exp(loss) of each unnamed evaluation loss.
  void set_shows_perplexity(bool is_language_model) { sinks_.show_perplexity(is_language_model); }

  /// Adds a value to the next line of the record.
  void log(reduced_value const& value) { own_.push_back(value); }

  /// Records the end of an update. `warns`: prints a skipped update on the console, too.
  void update(event::update_end const& event, figures const& known, bool warns);
  /// Records that a part of a run of several models skipped an update.
  void part_skipped(std::int64_t update, std::string const& part, result::skipped const& why);

  /// Records facts about a micro-batch: which fraction of its ids is padding and which fraction of its labels is ignored, if known.
  /// `checksum`: checksum of the data of the micro-batch, or 0 if the data was not read.
  void batch(bool begins_update, std::optional<double> const& padding, std::optional<double> const& ignored_labels,
             std::uint64_t checksum);
  void record_batch_finding(std::int64_t update, batch_finding const& finding);

  /// Returns the alarms raised since the last call.
  std::vector<raised_alarm> take_alarms() { return std::exchange(raised_, {}); }

  /// Reports why guarantees of the run directory are weaker than usual, each reason once.
  void log_weaker_guarantees(std::int64_t update);

  /// Records the result of a save.
  void saved(save_report const& report);
  /// Records a rollback: updates after `event.to` up to `event.from`, and lines of attempts after `kept`, no longer belong to the run.
  void rolled_back(event::rolled_back const& event, char const* change, std::int64_t kept);
  /// Records a restart by options.resume_at at update `to`, with learning rate `rate`. Updates after `to` are abandoned.
  void restarted(std::int64_t from, std::int64_t to, double rate, std::int64_t kept);
  /// Records that the checkpoint was saved with a different number of ranks.
  void other_ranks(std::string const& source, std::int64_t before, std::int64_t now);
  /// Adds the ranks' times to the next line of the record. Warns if the other ranks have waited for the same rank for many updates.
  void record_rank_timing(std::int64_t update, rank_timing const& times);
  /// Records a resume from a checkpoint of this directory. `state`: checksums of the loaded state.
  void resumed(std::int64_t update, nlohmann::ordered_json const& state);
  /// Records that the run begins with a checkpoint of another run. `message`: appended to the console line; `state`: as above.
  void begins_with(std::filesystem::path const& checkpoint, std::int64_t update, std::string const& message,
                   nlohmann::ordered_json const& state);

  /// Records the end of a run. `message`: description of the result; `why_finished`: written only for a finished run.
  void ended(outcome const& result, std::int64_t update, std::string const& message, std::string const& why_finished);

  /// Records that an exception with this `message` ends the run. `memory`: description of the memory shortage, or null.
  void failed(std::int64_t update, std::string const& message, nlohmann::ordered_json const& memory);

  /// Records an evaluation; an unnamed value is a loss. `milliseconds`: its duration, for an evaluation of the recipe only. Such an
  /// evaluation also gets a line in metrics.jsonl, and alarms watch it.
  void evaluated(std::int64_t update, std::string const& evaluation, evaluation_result const& result,
                 std::optional<double> milliseconds);

  /// `part`: its name in a run of several models; else empty. The same holds for the functions below.
  void rung_released(event::rung_released const& event, std::string const& part = {});

  /// Records the memory usage of an update. Warns once if it grows.
  void memory(std::int64_t update, memory::usage const& of);
  memory::timeline const& timeline() const { return timeline_; }
  memory::timeline& timeline() { return timeline_; }

  void out_of_memory(event::out_of_memory const& event, std::string const& part);

  /// Records the trace of a non-finite update. `path`: the folder of its files, or empty; `bytes`: their size.
  void incident(std::int64_t update, nlohmann::ordered_json const& description, std::string const& path, std::uint64_t bytes);

  /// Writes the layer statistics of an update.
  void layers(layer_record const& record);

  /// Returns the description of the last slowdown, and clears it.
  std::string take_slowdown() { return std::exchange(slowdown_, {}); }

  /// Records that the program changed numbers of the recipe, or of the recipe of `part`.
  void numbers_changed(std::int64_t update, config const& before, config const& now, std::string const& part = {});
  /// Warns that updates have become slower.
  void record_slowdown(std::int64_t update, slowdown const& found);

 private:
  /// Writes a line to the record and to the sinks.
  void write(update_metrics const& line);
  /// Adds a line to metrics.jsonl. Warns whenever writing starts to fail, not for each failed line.
  void add_line(nlohmann::ordered_json const& line);
  /// Writes a line to metrics.jsonl that begins with `mark`: updates after `to` and attempts after `kept` no longer belong to the run.
  void abandon(nlohmann::ordered_json mark, std::int64_t from, std::int64_t to, std::int64_t kept);
  /// Restarts the sinks after the last line that is kept.
  void restart_sinks_after(std::int64_t update);
  /// Prints and records an alarm with its causes and fixes.
  void raise(raised_alarm const& alarm);
  /// Writes `incident-ALARM-UPDATE.json`: the fields of the event, and the metric windows that raised the alarm.
  void write_incident(raised_alarm const& alarm, nlohmann::ordered_json details);
  /// Warns about failures of sinks, each kind once per sink.
  void report_sink_failures(std::int64_t update);

  run_directory* directory_;
  console& console_;
  run_record& record_;
  run_sinks sinks_;
  std::int64_t every_;  ///< updates per line
  std::vector<reduced_value> own_;
  std::vector<raised_alarm> raised_;
  detail::straggler_watch stragglers_;
  /// Mean over the micro-batches of the open update. Also keeps that of the previous update, whose end may be reported late.
  struct share {
    double sum = 0.0;
    std::int64_t count = 0;
    std::optional<double> before;

    std::optional<double> mean() const { return count > 0 ? std::optional(sum / static_cast<double>(count)) : std::nullopt; }
    void begin() { *this = {0.0, 0, mean()}; }
    void add(std::optional<double> const& one) {
      if (!one) return;
      sum += *one;
      ++count;
    }
    std::optional<double> take(bool is_late) const { return is_late ? before : mean(); }
  };
  share padding_;
  share ignored_labels_;
  std::uint64_t batch_ = 0;  ///< checksum of the open update's batches
  std::uint64_t batch_before_ = 0;
  memory::timeline timeline_;
  slowdown_watch slowdowns_;
  std::string slowdown_;
  std::optional<sink_thread> console_log_;
  bool warned_ = false;  ///< growing memory was reported
  bool has_pending_lines_ = false;
  std::set<std::string> warnings_;  ///< already reported
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/run_log.ipp>
#endif
