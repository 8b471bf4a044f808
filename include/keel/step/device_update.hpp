// An update that the device decides to apply or skip: the host launches it and reads the decision one update later. The logic is the same
// as in host_update. With several ranks each device evaluates the all-reduced values, so all ranks decide the same.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <keel/step/update_parts.hpp>
#include <span>

namespace keel::detail::inline KEEL_MODE {

class device_update final : public update_strategy {
 public:
  explicit device_update(update_parts& parts) : parts_(parts) {}

  update_decision decide() override;
  /// Checks and clips on the device, and pre-allocates what the update needs; modifies no parameter. `loss`: mean of the update, a double
  /// scalar on the device. `weighted_losses`: each rank's mean loss times its weight, to find non-finite ones; undefined for one rank.
  void decide(update_decision& decision, gradients<stage::scaled> whole, at::Tensor const& loss,
              at::Tensor const& weighted_losses = {});
  /// Launches the update.
  void apply(update_decision& decision) override;
  /// Waits for the result. Throws world_error (E25) if the update does not complete within the world's timeout.
  update_decision conclude(pending_update update);

 private:
  /// Throws world_error (E25) if the update does not complete within the world's timeout.
  void require_completed(device_result const& result) const;
  /// Names the first rank with a non-finite loss, unless it is this rank and a named loss is already reported.
  void name_rank(update_decision& decision, std::span<double const> losses) const;

  update_parts& parts_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/device_update.ipp>
#endif
