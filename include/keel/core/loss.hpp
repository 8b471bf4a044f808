// What a loss function may return: a scalar tensor that is the mean over the batch's rows, or a mean with its own weight
// where rows do not count alike (masked tokens, packed sequences).
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <keel/core/error.hpp>
#include <string>

namespace keel {

/// A mean over `weight` equal things, such as the tokens that were not masked.
struct weighted_loss {
  at::Tensor mean;      ///< scalar, floating point
  double weight = 1.0;  ///< above zero
};

inline weighted_loss as_weighted_loss(weighted_loss loss, std::int64_t /*rows*/) { return loss; }
inline weighted_loss as_weighted_loss(at::Tensor loss, std::int64_t rows) {
  return {std::move(loss), static_cast<double>(rows)};
}

/// A function that keel can take a batch's loss from.
template <class LossOf, class Batch>
concept loss_function = requires(LossOf& loss_of, Batch const& batch) { as_weighted_loss(loss_of(batch), std::int64_t{1}); };

/// Throws data_error (E07) unless a micro-batch counts for something.
inline void require_weight(double weight) {
  if (weight > 0.0 && std::isfinite(weight)) return;
  throw data_error("E07", "the weight of a loss must be a finite number above zero and is " + std::to_string(weight) +
                              ". Leave micro-batches without any counted element out of the data.");
}

/// Throws data_error unless the loss is a floating-point scalar with a graph and a positive weight.
inline void require_trainable(weighted_loss const& loss) {
  if (!loss.mean.defined() || loss.mean.numel() != 1 || !at::isFloatingType(loss.mean.scalar_type())) {
    std::string const shape = loss.mean.defined() ? c10::str(loss.mean.sizes(), " of ", loss.mean.scalar_type()) : "nothing";
    throw data_error("E07", "the loss must be one floating-point number and is " + shape +
                                ". Return a scalar tensor, as torch::nll_loss and its like do, or keel::weighted_loss.");
  }
  if (!loss.mean.requires_grad()) {
    throw data_error("E07",
                     "the loss does not depend on any parameter that requires grad. Compute it from the model's output, "
                     "outside of torch::NoGradGuard and without detach().");
  }
  require_weight(loss.weight);
}

}  // namespace keel
