// What a run writes down as it goes: a line of the record for every update or interval, an event for what is out of the ordinary, the
// console's line, and what sinks get.
#pragma once

#include <cstdint>
#include <filesystem>
#include <keel/batch_guard/batch_watch.hpp>
#include <keel/collective/world_of_ranks.hpp>
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
  /// What the trainer knows of an update beside the event of its end.
  struct figures {
    std::int64_t epoch;
    double learning_rate;  ///< of the next update
    std::int64_t skipped;
    double milliseconds;
    std::int64_t rollbacks;
    double operations_per_token;  ///< 0: not known
    double peak;                  ///< operations a second of the device; 0: not known
    std::optional<gpu_state> gpu;
    bool is_late;  ///< the update after it is open
  };

  /// All of them outlive the log; `directory` may be null.
  run_log(run_directory* directory, console& console, run_record& record, trainer_options const& options);
  run_log(run_log const&) = delete;
  run_log& operator=(run_log const&) = delete;
  ~run_log() { console_.log_to(nullptr); }

  /// For the console alone.
  void notice(std::string const& message) { console_.notice(message); }

  /// A run that is not resumed begins: an empty record, and its recipe.
  void begin(config const& recipe);
  /// What the run is from here on, for load_config and for a reader.
  void write_recipe(config const& recipe);
  /// The program's own loop was left by an exception; `message`: of the run's call that threw it, or empty.
  void record_exception_exit(std::int64_t update, std::string const& message) noexcept;
  /// The loop ends inside an update, of which `micro_batches` are left out.
  void partial_update(std::int64_t update, std::int64_t micro_batches);
  /// The recipe has a seed, and the model was made before the generators had it.
  void not_seeded(std::int64_t update);
  /// The recipe asks for a kernel that this LibTorch does not have.
  void no_fused_attention(std::int64_t update);

  /// The line of an interval that the run ends in, or rolls back from.
  void write_rest();

  /// Batches are made of token ids, so that a loss without a name is taken for a cross-entropy.
  void set_counts_tokens(bool do_count) { sinks_.show_perplexity(do_count); }

  /// For the next line of the record.
  void log(reduced_value const& value) { own_.push_back(value); }

  /// `warns`: a skipped update is printed on the console too.
  void update(event::update_end const& event, figures const& known, bool warns);
  /// One of several models of the run skipped an update.
  void part_skipped(std::int64_t update, std::string const& part, result::skipped const& why);

  /// Of a micro-batch: the share of its ids that fill rows, and of its labels that count for nothing, where they are known; a
  /// checksum of what was read of it, or 0.
  void batch(bool begins_update, std::optional<double> const& padding, std::optional<double> const& ignored_labels,
             std::uint64_t checksum);
  void found(std::int64_t update, batch_finding const& finding);

  /// Alarms that were raised since the last call.
  std::vector<raised_alarm> take_alarms() { return std::exchange(raised_, {}); }

  /// Once for each sentence: why promises of the run directory are weaker than usual.
  void log_weaker_promises(std::int64_t update);
  void lock_retaken(std::int64_t update);
  void best_lost(std::int64_t update);

  /// What became of a save.
  void saved(save_report const& report);
  void cannot_look(std::int64_t update, std::string const& message);
  /// A signal would end the run before its checkpoint is written (H04).
  void grace_too_short(std::int64_t update, double grace, double needed);
  /// The updates after `to` up to `from` are no longer part of the run, nor are lines of attempts after `kept`.
  void rolled_back(event::rolled_back const& event, char const* change, std::int64_t kept);
  /// options.resume_at restarted the run; the updates after `to` are abandoned.
  void restarted(std::int64_t from, std::int64_t to, double rate, std::int64_t kept);
  void migrated(std::string const& name, std::string const& source);
  /// Of several ranks: a run, or its part after a resume, begins.
  void log_world_size(std::int64_t update, world_of_ranks const& world);
  void record_last_collectives(world_of_ranks const& world, std::string const& why);
  /// The run goes on from a checkpoint of another number of ranks.
  void other_ranks(std::string const& source, std::int64_t before, std::int64_t now);
  /// For the next line of the record, what the ranks took; and which rank the others wait for, where they have for long.
  void record_rank_timing(std::int64_t update, rank_timing const& times);
  /// The epoch ends for all ranks, because one has no more data.
  void data_ended(std::int64_t update, int rank);
  /// The run goes on from a checkpoint of this directory, or begins with one of another run; `message` say in place of what.
  /// `state`: checksums of what was loaded.
  void resumed(std::int64_t update, nlohmann::ordered_json const& state);
  void begins_with(std::filesystem::path const& checkpoint, std::int64_t update, std::string const& message,
                   nlohmann::ordered_json const& state);
  void stopped_early(std::int64_t update, std::string const& message);

  /// The run ends as `message` say; `why_finished`, if it is.
  void ended(outcome const& result, std::int64_t update, std::string const& message, std::string const& why_finished);

  /// The first update of a run, or after a resume, is next: what keel/trainer/describe_run.hpp says of it.
  void begins(std::int64_t update, nlohmann::ordered_json const& description);
  /// What a guess knows of the labels of the first batches.
  void labels(std::int64_t update, label_guess const& guess);

  /// The run ends with an exception, which goes on. `memory`: where it ran out, or null.
  void failed(std::int64_t update, std::string const& message, nlohmann::ordered_json const& memory);

  /// A value without a name is a loss. `milliseconds` that an evaluation of the recipe took, which has a line and is watched by alarms.
  void evaluated(std::int64_t update, std::string const& evaluation, evaluation_result const& result,
                 std::optional<double> milliseconds);

  /// For each checkpoint that is damaged and skipped.
  void damaged(std::int64_t update, std::string const& message);

  /// `part`: of a run of several models; else empty, as below.
  void rung_released(event::rung_released const& event, std::string const& part = {});

  /// What an update took of memory; says once where that grows.
  void memory(std::int64_t update, memory::usage const& of);
  memory::timeline const& timeline() const { return timeline_; }
  memory::timeline& timeline() { return timeline_; }

  void out_of_memory(event::out_of_memory const& event, std::string const& part);

  /// An update that is not finite was looked into; `path`: where its files are, or empty.
  void incident(std::int64_t update, nlohmann::ordered_json const& description, std::string const& path, std::uint64_t bytes);

  /// What an update found in the layers.
  void layers(layer_record const& record);

  void profiled(std::int64_t update, std::filesystem::path const& path, std::string const& why);
  /// The last slowdown in words, once.
  std::string take_slowdown() { return std::exchange(slowdown_, {}); }

  /// The program changed numbers, of a part where the run has some.
  void numbers_changed(std::int64_t update, config const& before, config const& now, std::string const& part = {});
  /// Updates take longer than they did.
  void slower(std::int64_t update, slowdown const& found);

 private:
  /// A line of the record, and for the sinks.
  void write(update_metrics const& line);
  /// Once for every time that a disk does not take the record.
  void warn_about_pending_lines();
  /// The sinks go on behind the last line that stays.
  void restart_sinks_after(std::int64_t update);
  /// With what to do about it, for a person and for the record.
  void raise(raised_alarm const& alarm);
  /// The file `incident-ALARM-UPDATE.json`: what the event has, and the values that raised the alarm.
  void write_incident(raised_alarm const& alarm, nlohmann::ordered_json details);
  /// Once for each sink and what is wrong with it.
  void report_sink_failures(std::int64_t update);

  run_directory* directory_;
  console& console_;
  run_record& record_;
  run_sinks sinks_;
  std::int64_t every_;  ///< updates of a line
  std::vector<reduced_value> own_;
  std::vector<raised_alarm> raised_;
  detail::straggler_watch stragglers_;
  /// Means over the micro-batches of an update: the open one, and the one before, whose end may be late.
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
  std::uint64_t batch_ = 0;  ///< of the open update
  std::uint64_t batch_before_ = 0;
  memory::timeline timeline_;
  slowdown_watch slowdowns_;
  std::string slowdown_;
  std::optional<sink_thread> console_log_;
  bool warned_ = false;  ///< that memory grows
  bool has_pending_lines_ = false;
  std::set<std::string> warnings_;  ///< that were said
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/run_log.ipp>
#endif
