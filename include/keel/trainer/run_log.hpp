// What a run writes down as it goes: a line of the record for every update or interval, an event for what is out of the ordinary, the
// console's line, and what sinks get.
#pragma once

#include <cstdint>
#include <filesystem>
#include <keel/config/config.hpp>
#include <keel/core/outcome.hpp>
#include <keel/evaluation/evaluate.hpp>
#include <keel/memory/timeline.hpp>
#include <keel/metrics/console.hpp>
#include <keel/metrics/metric.hpp>
#include <keel/step/update_events.hpp>
#include <keel/trainer/progress.hpp>
#include <keel/trainer/run_events.hpp>
#include <keel/trainer/run_sinks.hpp>
#include <set>
#include <string>
#include <vector>

namespace keel {

template <class Files>
class run_directory;
struct save_report;
struct trainer_options;

template <class Files>
class run_log {
 public:
  /// What the trainer knows of an update beside the event of its end.
  struct figures {
    std::int64_t epoch;
    double learning_rate;  ///< of the next update
    std::int64_t skipped;
    double milliseconds;
  };

  /// All of them outlive the log; `directory` may be null.
  run_log(run_directory<Files>* directory, console& console, run_record& record, trainer_options const& options);

  /// For the console alone.
  void notice(std::string const& words) { console_.notice(words); }

  /// A run that is not resumed begins: an empty record, and its recipe.
  void begin(config const& recipe);
  /// What the run is from here on, for load_config and for a reader.
  void write_recipe(config const& recipe);
  /// The recipe asks for a kernel that this LibTorch does not have.
  void no_fused_attention(std::int64_t update);

  /// The line of an interval that the run ends in, or rolls back from.
  void write_rest();

  /// For the next line of the record.
  void log(reduced_value const& value) { own_.push_back(value); }

  /// `warns`: a skipped update is printed on the console too.
  void update(event::update_end const& event, figures const& known, bool warns);

  /// Once for each sentence: why promises of the run directory are weaker than usual.
  void weaker_promises(std::int64_t update);
  void lock_retaken(std::int64_t update);
  void best_lost(std::int64_t update);

  /// What became of a save.
  void saved(save_report const& report);
  void cannot_look(std::int64_t update, std::string const& words);
  /// A signal would end the run before its checkpoint is written (H04).
  void grace_too_short(std::int64_t update, double grace, double needed);
  /// The updates after `to` up to `from` are no longer part of the run, nor are lines of attempts after `kept`.
  void rolled_back(event::rolled_back const& event, char const* change, std::int64_t kept);
  /// options.resume_at restarted the run; the updates after `to` are abandoned.
  void restarted(std::int64_t from, std::int64_t to, double rate, std::int64_t kept);
  void migrated(std::string const& name, std::string const& source);
  /// The run goes on from a checkpoint of this directory, or begins with one of another run; `words` say in place of what.
  void resumed(std::int64_t update);
  void begins_with(std::filesystem::path const& checkpoint, std::int64_t update, std::string const& words);
  void stopped_early(std::int64_t update, std::string const& words);

  /// The run ends as `words` say.
  void ended(outcome const& result, std::int64_t update, std::string const& words);

  /// The run ends with an exception, which goes on.
  void failed(std::int64_t update, std::string const& words);

  /// A value without a name is a loss.
  void evaluated(std::int64_t update, std::string const& evaluation, evaluation_result const& result);

  /// For each checkpoint that is damaged and skipped.
  void damaged(std::int64_t update, std::string const& words);

  void rung_released(event::rung_released const& event);

  /// What an update took of memory; says once where that grows.
  void memory(std::int64_t update, memory::usage const& of);
  memory::timeline const& timeline() const { return timeline_; }
  memory::timeline& timeline() { return timeline_; }

  void out_of_memory(event::out_of_memory const& event);

 private:
  /// A line of the record, and for the sinks.
  void write(update_metrics const& line);
  /// Once for every time that a disk does not take the record.
  void say_what_waits();
  /// The sinks go on behind the last line that stays.
  void restart_sinks_after(std::int64_t update);
  /// Once for each sink and what is wrong with it.
  void say_what_sinks_miss(std::int64_t update);

  run_directory<Files>* directory_;
  console& console_;
  run_record& record_;
  run_sinks sinks_;
  std::int64_t every_;  ///< updates of a line
  std::vector<reduced_value> own_;
  memory::timeline timeline_;
  bool warned_ = false;
  bool lines_wait_ = false;
  std::set<std::string> warnings_;  ///< that were said
};

}  // namespace keel

#if !__has_include(<keel_bodies_are_compiled>)
#include <keel/trainer/run_log.ipp>
#endif
