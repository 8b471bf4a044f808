// What a keel step asks of an optimizer that unscales, clips and updates in one sweep over memory. Any other optimizer works
// too: then the step writes the factor into the gradients first.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <keel/optimizer/state_storage.hpp>
#include <memory>

namespace keel::inline KEEL_MODE {

class update_engine {
 public:
  virtual ~update_engine() = default;

  /// Everything that an update will need, such as moments of parameters that had no gradient before. An out-of-memory comes
  /// from here, where nothing has changed yet, and not from update_with or update_where, unless a parameter's device, dtype or
  /// layout makes it go by LibTorch's operators, which take memory of the parameter's size for as long as they run.
  virtual void prepare() = 0;

  /// The update that was prepared is not to come: what says that it had begun goes.
  virtual void forget_prepared() = 0;

  /// One update with every gradient multiplied by `factor`, which holds the loss scale, the update's weight and the clip. The
  /// gradients themselves stay as they are.
  virtual void update_with(double factor) = 0;

  /// The same with both unknown to the host: it takes place where `should_apply`, a bool scalar on the parameters' device, is true,
  /// and `factor` is a double scalar there. Nothing waits for the device. Gradients that it took place with may have been
  /// multiplied in memory, so no two of them may share theirs.
  virtual void update_where(at::Tensor const& should_apply, at::Tensor const& factor) = 0;

  /// The last update_where did not happen: the host's counters are put back.
  virtual void undo_update() = 0;

  /// Where moments and fp32 copies live from the next prepare() on; null: beside their parameters, where this call brings them.
  virtual void move_state_to(std::shared_ptr<state_storage> home) = 0;

  /// Takes out what it keeps beside LibTorch's state(), as if no update had been; calling the result puts it back.
  virtual std::function<void()> take_aside() = 0;

  /// The fp32 copy of a bf16 or fp16 parameter, which a checkpoint must hold; undefined where there is none.
  virtual at::Tensor master_of(at::Tensor const& parameter) const = 0;
  virtual void set_master(at::Tensor const& parameter, at::Tensor master) = 0;

 protected:
  update_engine() = default;
  update_engine(update_engine const&) = default;
  update_engine& operator=(update_engine const&) = default;
};

}  // namespace keel::inline KEEL_MODE
