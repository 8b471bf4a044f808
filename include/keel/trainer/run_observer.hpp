// What a run looks at beside its updates: each batch before it trains, the cost of a token, incidents, and the profiles of updates.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <exception>
#include <filesystem>
#include <keel/batch_guard/batch_watch.hpp>
#include <keel/config/config.hpp>
#include <keel/metrics/gpu_state.hpp>
#include <keel/metrics/layer_record.hpp>
#include <keel/metrics/phase_times.hpp>
#include <keel/step/update_events.hpp>
#include <keel/trainer/checkpoint_manager.hpp>
#include <keel/trainer/options.hpp>
#include <keel/trainer/progress.hpp>
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
  /// All of them outlive this; `directory` may be null. `alarms_write_incidents`: of the recipe. Throws error (E12) for a recipe with profiles or
  /// incidents and no place for them.
  run_observer(config const& recipe, trained_models& models, phase_clock& phases, run_log& log, trainer_options const& options,
               run_directory* directory, bool alarms_write_incidents);
  run_observer(run_observer const&) = delete;
  run_observer& operator=(run_observer const&) = delete;
  ~run_observer();

  /// The run begins, or has one more model.
  void begin();
  /// Describes a run of one model in its record: the first update, or the first after a resume, is next.
  void describe_begin(bool resumed);
  /// The run ends with this exception, and the update that is open goes: where memory ran out is still to be seen.
  void failing(std::exception const& thrown, bool evaluates);
  /// Null where it was not memory.
  nlohmann::ordered_json const& failure() const { return *failure_; }

  // Batches.

  /// Says what is odd about a batch. Throws data_error (E06) where it cannot train.
  void look_at(c10::function_ref<batch_contents()> contents, data_cursor const& at);
  /// So many of its rows are left out.
  void dropped(std::int64_t count, std::int64_t rows);
  void end_epoch();
  /// A resume or a rollback moved the data.
  void on_data_rewound() { batches_.on_data_rewound(); }

  // Utilisation.

  /// Measures what the device can do where nothing says it. Returns its argument.
  double use_operations(double per_token);
  /// 0: not known.
  double operations_per_token() const { return operations_per_token_; }
  /// Operations a second; 0: not known.
  double peak() const { return peak_; }

  /// What update number `next` looks at of layers. Nothing where the figures would have no place: `has_place`, apart from sinks.
  layer_detail layers_due(bool has_place, std::int64_t next) const;

  /// An update that is not finite was looked into: says so, and keeps what shows it again where the recipe asks for that.
  void incident(event::incident const& event, run_part const& part, checkpoint_manager& checkpoints,
                data_cursor const& began_at, std::int64_t attempts);

  std::optional<gpu_state> gpu() { return gpu_ ? gpu_->read() : std::nullopt; }

  // Profiles.

  void before_update(std::int64_t attempt);
  /// Something that a profile would explain.
  void symptom(std::string const& why) { profiles_.symptom(why); }
  void end();

 private:
  void say(batch_finding const& found);
  void report_written_profiles();

  config const& recipe_;
  trained_models& models_;
  phase_clock& phases_;
  run_log& log_;
  trainer_options const& options_;
  run_directory* directory_;
  batch_watch batches_;
  bool looks_ = true;
  double operations_per_token_ = 0.0;
  double peak_ = 0.0;
  std::unique_ptr<nlohmann::ordered_json> failure_;
  c10::Device device_{c10::kCPU};
  std::optional<gpu_monitor> gpu_;                ///< once the run has begun
  std::optional<std::int64_t> kept_attempt_;      ///< of the last incident whose files were written
  std::optional<std::int64_t> profiled_attempt_;  ///< the last that profiles were asked about
  run_profiles profiles_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/run_observer.ipp>
#endif
