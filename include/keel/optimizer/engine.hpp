// The interface of optimizers that unscale, clip and update in one pass over memory. Other optimizers also work: a keel step
// then multiplies the gradients by the factor first.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <keel/optimizer/state_storage.hpp>
#include <memory>

namespace keel::inline KEEL_MODE {

class update_engine {
 public:
  virtual ~update_engine() = default;

  /// Allocates everything that the next update needs, such as moments of new parameters. If memory runs out, this throws before
  /// anything has changed, and update_with and update_where do not. Exception: for a parameter that LibTorch's operators must
  /// update, they temporarily allocate memory of its size.
  virtual void prepare() = 0;

  /// Cancels the prepared update.
  virtual void forget_prepared() = 0;

  /// Applies one update with every gradient multiplied by `factor`: the loss scale, the update's weight and the clipping. The
  /// gradients are not modified.
  virtual void update_with(double factor) = 0;

  /// As above, without synchronizing the host. The update is applied if `should_apply`, a bool scalar on the parameters'
  /// device, is true. `factor` is a double scalar on the same device. The gradients may be multiplied in place, so no two of
  /// them may share memory.
  virtual void update_where(at::Tensor const& should_apply, at::Tensor const& factor) = 0;

  /// Restores the host's counters after an update_where that was not applied.
  virtual void undo_update() = 0;

  /// Sets where moments and fp32 copies are stored from the next prepare() on. Null moves them to their parameters' device in
  /// this call.
  virtual void move_state_to(std::shared_ptr<state_storage> home) = 0;

  /// Removes the state that is not in LibTorch's state(), as if no update had been made. Call the result to restore it.
  virtual std::function<void()> take_aside() = 0;

  /// Returns the fp32 master copy of a bf16 or fp16 parameter, which a checkpoint must save; undefined if there is none.
  virtual at::Tensor master_of(at::Tensor const& parameter) const = 0;
  virtual void set_master(at::Tensor const& parameter, at::Tensor master) = 0;

 protected:
  update_engine() = default;
  update_engine(update_engine const&) = default;
  update_engine& operator=(update_engine const&) = default;
};

}  // namespace keel::inline KEEL_MODE
