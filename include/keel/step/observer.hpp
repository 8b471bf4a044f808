// Who listens to a step: a trainer, a part of a run, or nothing.
#pragma once

#include <keel/config/config.hpp>
#include <keel/metrics/layer_record.hpp>
#include <keel/step/update_events.hpp>

namespace keel::inline KEEL_MODE {

/// Is called with the events of update_events.hpp, and says what of an update it wants to know.
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

  /// It looks at the loss of each micro-batch, or at the gradients of each update, so the host has to read them at once.
  virtual bool reads_losses() const { return false; }
  virtual bool reads_gradients() const { return false; }
  /// What each update took of memory.
  virtual bool watches_memory() const { return false; }
  /// How much of the layers, of the update that begins.
  virtual layer_detail watches_layers() const { return layer_detail::none; }
  /// An update that is not finite is looked into, where the recipe keeps incidents.
  virtual bool traces_incidents() const { return true; }
  /// The recipe as the rules judge it: with what the observer's run adds.
  virtual config judged(config const& value) const { return value; }
};

/// Listens to nothing.
inline step_observer& no_observer() {
  static step_observer none;
  return none;
}

}  // namespace keel::inline KEEL_MODE
