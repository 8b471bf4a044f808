// An update of several ranks: they agree on what their micro-batches came to, add up their gradients, and each judges the sum, on its host
// or on its device.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <keel/step/device_update.hpp>
#include <keel/step/host_update.hpp>
#include <keel/step/update_parts.hpp>
#include <optional>

namespace keel::detail::inline KEEL_MODE {

class replicated_update final : public update_strategy {
 public:
  /// All of them outlive this.
  replicated_update(update_parts& parts, host_update& host, device_update& device)
      : parts_(parts), host_(host), device_(device) {}

  /// Call before the last micro-batch. The control all-reduce then overlaps its backward pass, if the host knows the loss before that pass
  /// or does not need it.
  void agree_in_backward();
  update_decision decide() override;
  void apply(update_decision& decision) override;

 private:
  /// Of the update that is being decided.
  struct agreement {
    update_summary all;
    std::optional<gradients<stage::scaled>> whole;  ///< where this rank's loss is finite, or on the device
    // There, of several ranks.
    at::Tensor local, named;
    at::Tensor losses;  ///< of each rank, by its weight
  };

  update_sums const& sums() const { return parts_.pass.sums(); }
  bool is_sum() const { return parts_.recipe().accumulate.sum; }
  bool on_device() const { return parts_.decides_on_device; }
  template <class Loss>
  Loss mean_of(Loss const& loss, update_summary const& all) const {
    return is_sum() ? loss : loss / all.loss_weight;
  }
  /// The host knows that a loss is not finite, without a look at the device.
  bool has_nonfinite_loss() const { return on_device() && !sums().exception.empty(); }

  /// `loss`: of this rank, where its host knows it.
  update_summary make_update_summary(double loss, double loss_weight, double unit, double weight) const;
  void begin_agreement(loss_accumulator const& tally, double weight);
  agreement agree();
  /// What the host knows of it is the same on all ranks.
  void skip(update_decision& decision, agreement const& of_ranks) const;
  /// Pre-allocates the tensors for the all-reduces of the losses on devices: running out of memory between two of them would leave the
  /// other ranks blocked in the second.
  void prepare_losses(agreement& of_ranks) const;
  /// Of all ranks, a double scalar there, and the named ones among the update's facts.
  at::Tensor loss_on_device(update_facts& facts, agreement& of_ranks) const;
  void notify_before_gather(c10::function_ref<void()> run);
  /// As replication::abort_peers_on_exception. Where memory ran out, the step of a recipe with a ladder says so.
  void abort_peers_on_exception(c10::function_ref<void()> run);

  update_parts& parts_;
  host_update& host_;
  device_update& device_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/replicated_update.ipp>
#endif
