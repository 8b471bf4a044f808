// What else touches an update: the program between its micro-batches (zero_grad(), clipping, another loss's backward pass,
// optimizer.step()), and a second optimizer.step() after it. Both would give an `updated` outcome with wrong parameters.
// Changes by a kernel on a device that write past autograd's count are not seen: looking at them would wait for the device.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <keel/core/error.hpp>
#include <keel/core/parameters.hpp>
#include <keel/core/tensor_mark.hpp>
#include <keel/libtorch/compatibility.hpp>
#include <optional>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// The gradients and parameters of an open update, between one micro-batch and the next.
class open_update_watch {
 public:
  /// The list outlives this.
  explicit open_update_watch(parameter_list const& parameters) : parameters_(parameters) {}

  /// After a micro-batch. `sampled`: more of them are to come, and the program runs in between.
  void take(bool sampled);
  /// Hooks of the update before this one, which a device decided late, may have changed the parameters.
  void capture_parameters() {
    for (std::size_t i = 0; i < gradients_.size(); ++i) values_[i] = tensor_mark(parameters_.tensors[i], sampled_);
  }
  /// No update is open.
  void forget() { gradients_.clear(); }

  /// Throws interference_error (E19) that names the first parameter that changed since take(), and what does that.
  void require_unchanged() const;

 private:
  std::string what(std::size_t i) const;
  [[noreturn]] static void refuse(std::string const& which, std::string const& happened);

  parameter_list const& parameters_;
  bool sampled_ = true;
  std::vector<tensor_mark> gradients_;
  std::vector<tensor_mark> values_;
};

/// An optimizer.step() call by the program after the step's own: the same gradients would be applied twice.
class repeated_step_watch {
 public:
  /// The update took place, and its gradients are still there.
  void take(torch::optim::Optimizer& optimizer, parameter_list const& parameters);
  void forget() { parameter_ = at::Tensor(); }

  /// Throws interference_error (E19), where the optimizer made one more step with the gradients of the last update.
  void require_none(torch::optim::Optimizer& optimizer) const;

 private:
  /// A number that every step of the optimizer counts up; nothing where it keeps none.
  std::optional<std::int64_t> progress_of(torch::optim::Optimizer& optimizer) const;

  /// What plain gradient descent would make of a few elements; with momentum what its buffer says.
  void expect(torch::optim::Optimizer& optimizer);
  /// Something moved, and everything to where one more step leads.
  bool is_as_expected() const;

  static bool is_readable(at::Tensor const& tensor) {
    bool const known = tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble;
    return known && tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous();
  }
  static double element(at::Tensor const& tensor, std::int64_t at) {
    return tensor.scalar_type() == at::kDouble ? tensor.data_ptr<double>()[at]
                                               : static_cast<double>(tensor.data_ptr<float>()[at]);
  }

  static constexpr std::int64_t most = 8;
  struct expectation {
    std::int64_t at;
    double before, after;
  };

  at::Tensor parameter_;  ///< the first that had a gradient
  tensor_mark gradient_;
  std::optional<std::int64_t> progress_;
  std::vector<expectation> expected_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/gradients/interference.ipp>
#endif
