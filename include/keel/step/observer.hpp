// The observer of a step: a trainer, a part of a run, or none.
#pragma once

#include <keel/config/config.hpp>
#include <keel/metrics/layer_record.hpp>
#include <keel/step/update_events.hpp>

namespace keel::inline KEEL_MODE {

/// Receives the events of update_events.hpp, and declares which measurements of an update it needs.
class step_observer {
 public:
  step_observer() = default;
  step_observer(step_observer const&) = default;
  step_observer& operator=(step_observer const&) = default;
  virtual ~step_observer() = default;

  virtual void observe(event::update_begin const& /*event*/) {}
  virtual void observe(event::micro_batch_begin const& /*event*/) {}
  virtual void observe(event::micro_batch_end const& /*event*/) {}
  virtual void observe(event::gradients_ready const& /*event*/) {}
  virtual void observe(event::update_end const& /*event*/) {}
  virtual void observe(event::incident const& /*event*/) {}
  virtual void observe(event::layers_measured const& /*event*/) {}
  virtual void observe(event::out_of_memory const& /*event*/) {}
  virtual void observe(event::rung_released const& /*event*/) {}

  /// True if it reads the loss of each micro-batch. The host then waits for every loss.
  virtual bool reads_losses() const { return false; }
  /// True if it reads the gradients of each update. The host then waits for them.
  virtual bool reads_gradients() const { return false; }
  /// True if each update reports its memory usage.
  virtual bool watches_memory() const { return false; }
  /// The detail of layer statistics to measure in the update that begins.
  virtual layer_detail watches_layers() const { return layer_detail::none; }
  /// True if non-finite updates are traced, provided that the recipe enables incidents.
  virtual bool traces_incidents() const { return true; }
  /// Returns `value` with the facts that the observer's run adds. The rules check the result.
  virtual config with_run_facts(config const& value) const { return value; }
};

/// Returns an observer that ignores all events.
inline step_observer& no_observer() {
  static step_observer none;
  return none;
}

}  // namespace keel::inline KEEL_MODE
