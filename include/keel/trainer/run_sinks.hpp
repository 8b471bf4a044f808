// The sinks of a run: TensorBoard and those of the program. Each has its own thread, so that none delays training or another sink.
#pragma once

#include <cstdint>
#include <filesystem>
#include <keel/evaluation/evaluate.hpp>
#include <keel/metrics/layer_record.hpp>
#include <keel/metrics/sink.hpp>
#include <keel/metrics/sink_thread.hpp>
#include <keel/metrics/update_metrics.hpp>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

class run_sinks {
 public:
  void add(std::string name, std::shared_ptr<metric_sink> sink) { threads_.emplace_back(std::move(name), std::move(sink)); }

  void update(update_metrics const& m);
  /// Posts the values of an evaluation. An unnamed value is a loss.
  void evaluated(std::int64_t update, std::string const& evaluation, evaluation_result const& result);
  /// Adds a perplexity, exp(loss), to each unnamed evaluation loss. Correct only for a mean cross-entropy in nats.
  void show_perplexity(bool is_shown) { shows_perplexity_ = is_shown; }
  void layers(layer_record const& record);
  void text(std::int64_t update, std::string const& name, std::string const& words);
  /// Announces that the run continues after update `update`, following a rollback or a resume.
  void restarted_after(std::int64_t update);

  /// Asks the sinks to flush their values. Does not wait.
  void flush();

  /// Returns messages about failures of sinks since the last call.
  std::vector<std::string> take_troubles();

  /// True if anything was posted.
  bool has_posted() const { return has_posted_; }

  /// Waits until the sinks have processed everything, at most ten seconds per sink.
  void drain();

 private:
  void scalars(std::int64_t update, std::vector<named_value> values);

  void post(sink_thread::job const& one, bool may_drop = true);

  std::list<sink_thread> threads_;
  bool has_posted_ = false;
  bool shows_perplexity_ = false;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/run_sinks.ipp>
#endif
