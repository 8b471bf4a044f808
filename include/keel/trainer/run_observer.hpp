// Observes a run: checks batches, measures utilization, writes incidents and records profiles.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <exception>
#include <filesystem>
#include <keel/batch_guard/batch_watch.hpp>
#include <keel/config/config.hpp>
#include <keel/data/data_cursor.hpp>
#include <keel/metrics/gpu_state.hpp>
#include <keel/metrics/layer_record.hpp>
#include <keel/metrics/phase_times.hpp>
#include <keel/step/update_events.hpp>
#include <keel/trainer/checkpoint_manager.hpp>
#include <keel/trainer/options.hpp>
#include <keel/trainer/run_log.hpp>
#include <keel/trainer/run_profiles.hpp>
#include <keel/trainer/trained_models.hpp>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace keel::inline KEEL_MODE {

class run_directory;

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

class run_observer {
 public:
  /// All arguments must outlive this object; `directory` may be null. `alarms_write_incidents`: an alarm of the recipe writes incidents.
  /// Throws error (E12) if the recipe writes profiles or incidents and there is no run directory.
  run_observer(config const& recipe, trained_models& models, phase_clock& phases, run_log& log, trainer_options const& options,
               run_directory* directory, bool alarms_write_incidents);
  run_observer(run_observer const&) = delete;
  run_observer& operator=(run_observer const&) = delete;
  ~run_observer();

  /// Call when the run begins, and after a model was added: selects the device to observe.
  void begin();
  /// Writes the event `begins` of a run of one model. Call before the first update, or the first after a resume.
  void describe_begin(bool resumed);
  /// Captures where memory ran out, if `thrown` reports that. Call before the open update is dropped.
  void capture_shortage(std::exception const& thrown, bool evaluates);
  /// Description of the memory shortage that ended the run; null if memory was not the cause.
  nlohmann::ordered_json const& failure() const { return *failure_; }

  // Batches.

  /// Checks a batch and reports findings. Throws data_error (E06) if it cannot be trained on.
  void check_batch(c10::function_ref<batch_contents()> contents, data_cursor const& at);
  /// Reports that `count` of the batch's `rows` rows are removed.
  void dropped(std::int64_t count, std::int64_t rows);
  void end_epoch();
  /// Call after a resume or a rollback has moved the data position.
  void on_data_rewound() { batches_.on_data_rewound(); }

  // Utilization.

  /// Sets the operations per token, and measures the device's peak throughput unless the options have it. Returns its argument.
  double use_operations(double per_token);
  /// Floating-point operations per token; 0: unknown.
  double operations_per_token() const { return operations_per_token_; }
  /// Peak throughput of the device, in operations per second; 0: unknown.
  double peak() const { return peak_; }

  /// Returns which layer metrics update number `next` records; layer_detail::none if nothing would receive them. `has_other_consumer`: hooks
  /// or a directory, not only sinks, receive them.
  layer_detail layers_due(bool has_other_consumer, std::int64_t next) const;

  /// Records the trace of a non-finite update. If the recipe keeps incidents, also writes the files from which it can be replayed.
  void incident(event::incident const& event, run_part const& part, checkpoint_manager& checkpoints,
                data_cursor const& began_at, std::int64_t attempts);

  std::optional<gpu_state> gpu() { return gpu_ ? gpu_->read() : std::nullopt; }

  // Profiles.

  void before_update(std::int64_t attempt);
  /// Requests a profile of the next updates. `why`: the symptom that it may explain.
  void symptom(std::string const& why) { profiles_.symptom(why); }
  void end();

 private:
  void report(batch_finding const& found);
  void report_written_profiles();

  config const& recipe_;
  trained_models& models_;
  phase_clock& phases_;
  run_log& log_;
  trainer_options const& options_;
  run_directory* directory_;
  batch_watch batches_;
  bool is_batch_guard_on_ = true;
  double operations_per_token_ = 0.0;
  double peak_ = 0.0;
  std::unique_ptr<nlohmann::ordered_json> failure_;
  c10::Device device_{c10::kCPU};
  std::optional<gpu_monitor> gpu_;                ///< set when the run has begun
  std::optional<std::int64_t> kept_attempt_;      ///< attempt of the last incident whose files were written
  std::optional<std::int64_t> profiled_attempt_;  ///< last attempt passed to before_update()
  run_profiles profiles_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/run_observer.ipp>
#endif
