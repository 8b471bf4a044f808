// Progress of a run: counters, and the statistics that the record needs. Checkpoints contain all of it.
#pragma once

#include <cstdint>
#include <keel/core/window_statistics.hpp>
#include <keel/data/data_cursor.hpp>
#include <keel/evaluation/early_stop.hpp>
#include <keel/health/alarm_watch.hpp>
#include <keel/metrics/update_interval.hpp>
#include <string>
#include <utility>

namespace keel::inline KEEL_MODE {

/// Advances a data cursor by whole updates: the micro-batches of a dropped update do not count as consumed.
class update_cursor {
 public:
  /// The cursor must outlive this object.
  explicit update_cursor(data_cursor& cursor) : cursor_(cursor) {}
  void begin() {
    began_at_ = cursor_;
    closed_ = false;
  }
  /// The position in the data before the open update began.
  data_cursor const& began_at() const { return began_at_; }
  /// Call when an update was applied or skipped. `is_deferred`: it is the previous update, and the open one remains open.
  void close(bool is_deferred) { closed_ = closed_ || !is_deferred; }
  /// Call after each micro-batch.
  void advance() {
    ++cursor_.position;
    ++cursor_.consumed;
  }
  /// Call when the update is dropped: restores the position from before it.
  void rewind() { cursor_ = began_at_; }
  /// Calls `run`, which trains on a micro-batch. If it throws, rewinds; if it throws after the update was closed, advances instead.
  template <class Run>
  auto run_micro_batch(Run const& run) {
    return rewind_on_exception(run, [this] { advance(); });
  }
  /// Calls `run`, which closes the open update without a micro-batch. If it throws before it has closed the update, rewinds.
  template <class Run>
  auto run_flush(Run const& run) {
    return rewind_on_exception(run, [] {});
  }

 private:
  template <class Run, class AfterClosing>
  auto rewind_on_exception(Run const& run, AfterClosing const& after_closing) {
    try {
      return run();
    } catch (...) {
      if (closed_) {
        after_closing();
      } else {
        rewind();
      }
      throw;
    }
  }

  data_cursor& cursor_;
  data_cursor began_at_;
  bool closed_ = true;
};

/// State of the run's record that persists between updates.
struct run_record {
  std::int64_t attempts = 0;  ///< number of updates, including skipped ones
  /// Attempt that produced the current parameters; unchanged if a rollback saves them again.
  std::int64_t produced_by_attempt = 0;
  std::int64_t lines = 0;  ///< lines of metrics.jsonl, including marks of abandoned lines
  std::int64_t tokens = 0;
  std::int64_t rungs = 0;             ///< rungs taken
  std::int64_t evaluated_epochs = 0;  ///< epoch count at the last epoch-based evaluation
  std::int64_t saved_units = 0;       ///< epoch or token count at the last save that its cadence triggered
  double first_loss = 0.0;
  double last_loss = 0.0;
  window_statistics loss;
  window_statistics gradient_norm;
  update_interval interval;  ///< updates that have no line in the record yet
  alarm_watch alarms;        ///< the recipe's alarms

  template <class Archive>
  void visit(Archive& archive) {
    archive("attempts", attempts);
    archive("age", produced_by_attempt);
    archive("lines", lines);
    archive("tokens", tokens);
    archive("rungs", rungs);
    archive.optional_field("evaluated_epochs", evaluated_epochs);
    archive.optional_field("saved_units", saved_units);
    archive("first_loss", first_loss);
    archive("last_loss", last_loss);
    archive("loss", loss);
    archive("gradient_norm", gradient_norm);
    archive.optional_field("interval", interval);
    if (!alarms.is_empty()) archive.optional_field("alarms", alarms);
  }
};

/// Progress of a run, apart from the state of its step.
struct run_progress {
  explicit run_progress(evaluation::settings const& settings, alarm_watch alarms = alarm_watch()) : evaluations(settings) {
    record.alarms = std::move(alarms);
  }
  data_cursor cursor;
  run_record record;
  early_stop evaluations;
};

}  // namespace keel::inline KEEL_MODE
