// An update on several ranks. The ranks agree on a summary of their micro-batches and all-reduce their gradients. Then each rank decides
// from the result, on its host or its device.
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
  /// All arguments must outlive this object.
  replicated_update(update_parts& parts, host_update& host, device_update& device)
      : parts_(parts), host_(host), device_(device) {}

  /// Call before a micro-batch after which gradients are summed. The control message then overlaps its backward pass, if the host knows
  /// the loss before that pass or does not need it.
  void overlap_agreement_with_backward();
  /// Under shard::zero<2> and zero<3>: sums the gradients of a micro-batch over the ranks. Call after every micro-batch but the last.
  void end_micro_batch();
  update_decision decide() override;
  void apply(update_decision& decision) override;

 private:
  /// The result of the ranks' agreement on the current update.
  struct agreement {
    update_summary all;
    std::optional<gradients<stage::scaled>> whole;  ///< set if this rank's loss is finite, or on the device
    // On the device, with several ranks.
    at::Tensor local;   ///< this rank's loss, times its weight
    at::Tensor named;   ///< sum and weight of each named loss
    at::Tensor losses;  ///< loss of each rank, times its weight
  };

  update_sums const& sums() const { return parts_.pass.sums(); }
  bool is_sum() const { return parts_.recipe().accumulate.sum; }
  bool on_device() const { return parts_.decides_on_device; }
  template <class Loss>
  Loss mean_of(Loss const& loss, update_summary const& all) const {
    return is_sum() ? loss : loss / all.loss_weight;
  }
  /// True if the host knows, without reading the device, that a loss is non-finite.
  bool has_nonfinite_loss() const { return on_device() && !sums().exception.empty(); }

  /// Summarizes this rank's update. `loss`: this rank's loss, if its host knows it.
  update_summary make_update_summary(double loss, double loss_weight, double unit, double weight) const;
  void begin_agreement(loss_accumulator const& tally, double weight, at::Tensor const& loss);
  /// `complete`: all micro-batches are done.
  agreement agree(bool complete);
  /// Sums the gradients over the ranks if all losses are finite and their total weight is positive.
  void sum_gradients(update_summary const& all);
  /// Sets the reason to skip, the same on all ranks.
  void skip(update_decision& decision, agreement const& of_ranks) const;
  /// Pre-allocates the tensors for the all-reduces of device losses: a rank that ran out of memory between two of them would leave the
  /// other ranks blocked in the second one.
  void prepare_losses(agreement& of_ranks) const;
  /// The loss over all ranks as a double scalar on the device; also stores the named losses in `facts`. Collective.
  at::Tensor loss_on_device(update_facts& facts, agreement& of_ranks) const;
  /// Runs rank-local work that precedes the all-gather of shards. An exception aborts the peers, but an out-of-memory error does not if the
  /// recipe has a ladder, because it is retried.
  void notify_before_gather(c10::function_ref<void()> run);
  /// Same as replication::abort_peers_on_exception, but does not abort if memory ran out and the recipe has a ladder: the retry reports
  /// that to the peers.
  void abort_peers_on_exception(c10::function_ref<void()> run);

  update_parts& parts_;
  host_update& host_;
  device_update& device_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/replicated_update.ipp>
#endif
