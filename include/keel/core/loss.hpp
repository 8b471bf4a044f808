// The return types of a loss function: a scalar tensor, weighted_loss or losses.
//   - A scalar tensor is the mean over the batch's rows.
//   - weighted_loss is a mean with its own weight, for rows of unequal weight (masked tokens, packed sequences).
//   - losses holds several named losses, which are summed:
//     return keel::losses{{"policy", policy_loss}, {"value", value_loss, 0.5}};
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <keel/core/error.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// A named term of a sum of losses.
struct named_loss {
  std::string name;     ///< recorded as "loss/name"
  at::Tensor value;     ///< scalar, floating point: the mean over the batch's rows
  double weight = 1.0;  ///< the factor in the sum
};

/// A mean over `weight` items of equal weight, such as unmasked tokens.
struct weighted_loss {
  at::Tensor mean;                     ///< scalar, floating point
  double weight = 1.0;                 ///< at least 0; a micro-batch of weight 0 is ignored
  std::vector<named_loss> parts = {};  ///< the named terms of `mean`, if the program names them
};

/// Named losses, which are summed. Each is recorded as "loss/name", without its factor. A skipped update reports the name of
/// the non-finite loss.
class losses {
 public:
  /// Throws data_error (E07) for an empty or duplicate name, a factor that is not finite, and a value that is not a
  /// floating-point scalar.
  losses(std::initializer_list<named_loss> parts) {
    for (named_loss const& one : parts) add(one.name, one.value, one.weight);
  }
  losses() = default;

  /// Adds one loss, for example in a loop over heads. Throws as the constructor does.
  losses& add(std::string name, at::Tensor value, double weight = 1.0) {
    auto const fail = [&](std::string const& words) { throw data_error("E07", "the loss \"" + name + "\" " + words); };
    if (name.empty()) fail("has an empty name. Give it one, such as \"value\".");
    for (named_loss const& one : parts_) {
      if (one.name == name) fail("appears twice in one keel::losses. Give each its own name.");
    }
    if (!value.defined() || value.numel() != 1 || !at::isFloatingType(value.scalar_type())) {
      std::string const shape = value.defined() ? c10::str(value.sizes(), " of ", value.scalar_type()) : "nothing";
      fail("must be one floating-point number, but is " + shape + ". Use its mean() or sum().");
    }
    if (!std::isfinite(weight)) fail("has the factor " + std::to_string(weight) + ". Use a finite number.");
    parts_.push_back({std::move(name), std::move(value), weight});
    return *this;
  }
  /// Sets the number of items that the means are over, as in keel::weighted_loss. The default is the number of rows.
  losses& over(double weight) {
    weight_ = weight;
    return *this;
  }

  /// Returns the sum of all losses times their factors, in insertion order. Throws data_error (E07) if there are no losses.
  at::Tensor total() const {
    if (parts_.empty()) throw data_error("E07", "keel::losses is empty. Name at least one loss.");
    at::Tensor sum;
    for (named_loss const& one : parts_) {
      at::Tensor const term = (one.weight == 1.0 ? one.value : one.value * one.weight).reshape({});
      sum = sum.defined() ? sum + term : term;
    }
    return sum;
  }
  /// Returns the losses in insertion order.
  std::vector<named_loss> const& parts() const { return parts_; }
  /// Returns the weight set by over(), or nullopt if the losses count by rows.
  std::optional<double> weight() const { return weight_; }

 private:
  std::vector<named_loss> parts_;
  std::optional<double> weight_;
};

/// Converts the return value of a loss function to a weighted_loss. This overload returns its argument.
inline weighted_loss as_weighted_loss(weighted_loss loss, std::int64_t /*rows*/) { return loss; }
/// Converts a mean; its weight is the number of rows.
inline weighted_loss as_weighted_loss(at::Tensor loss, std::int64_t rows) {
  return {std::move(loss), static_cast<double>(rows)};
}
/// Converts named losses; the weight is that of over(), or the number of rows. Throws data_error (E07) if there are no losses.
inline weighted_loss as_weighted_loss(losses const& all, std::int64_t rows) {
  return {all.total(), all.weight().value_or(static_cast<double>(rows)), all.parts()};
}

/// A loss function that keel supports for this batch type.
template <class LossOf, class Batch>
concept loss_function = requires(LossOf& loss_of, Batch const& batch) { as_weighted_loss(loss_of(batch), std::int64_t{1}); };

/// Throws data_error (E07) unless the weight is a finite number of at least zero. A loss of weight zero is ignored.
inline void require_weight(double weight) {
  if (weight >= 0.0 && std::isfinite(weight)) return;
  throw data_error("E07", "the weight of a loss must be finite and not negative, but is " + std::to_string(weight) +
                              ". Return the weight of the micro-batch, such as its number of rows or of unmasked tokens.");
}

/// Throws data_error (E07) unless the loss is a floating-point scalar with a graph.
inline void require_trainable(weighted_loss const& loss) {
  if (!loss.mean.defined() || loss.mean.numel() != 1 || !at::isFloatingType(loss.mean.scalar_type())) {
    std::string const shape = loss.mean.defined() ? c10::str(loss.mean.sizes(), " of ", loss.mean.scalar_type()) : "nothing";
    throw data_error("E07",
                     "the loss must be one floating-point number, but is " + shape +
                         ". Return its mean() or sum(), or several by name as keel::losses{{\"policy\", p}, {\"value\", v}}.");
  }
  if (!loss.mean.requires_grad()) {
    throw data_error("E07",
                     "the loss does not depend on any parameter that requires grad. Compute it from the model's output, "
                     "outside of torch::NoGradGuard and without detach().");
  }
}

}  // namespace keel::inline KEEL_MODE
