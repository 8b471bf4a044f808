// Detects changes by the program that corrupt an update: between micro-batches (zero_grad(), clipping, another loss's backward
// pass, optimizer.step()), and a second optimizer.step() after the update. Either would give an `updated` outcome with wrong
// parameters. Not detected: changes by a device kernel that bypasses autograd's version counter, because reading the values
// would synchronize.
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

/// Watches the gradients and parameters of an open update between two micro-batches.
class open_update_watch {
 public:
  /// `parameters` must outlive this.
  explicit open_update_watch(parameter_list const& parameters) : parameters_(parameters) {}

  /// Captures the state after a micro-batch. `sampled`: further micro-batches follow, and the program runs in between.
  void take(bool sampled);
  /// Recaptures the parameters, which hooks may have changed during the deferred result of the previous update.
  void capture_parameters() {
    for (std::size_t i = 0; i < gradients_.size(); ++i) values_[i] = tensor_mark(parameters_.tensors[i], sampled_);
  }
  /// Call when no update is open.
  void forget() { gradients_.clear(); }

  /// Throws interference_error (E19), which names the first parameter that changed since take() and the likely cause.
  void require_unchanged() const;

 private:
  std::string what(std::size_t i) const;
  [[noreturn]] static void refuse(std::string const& which, std::string const& happened);

  parameter_list const& parameters_;
  bool sampled_ = true;
  std::vector<tensor_mark> gradients_;
  std::vector<tensor_mark> values_;
};

/// Detects an optimizer.step() call by the program after the step's own, which would apply the same gradients twice.
class repeated_step_watch {
 public:
  /// Call after an update was applied, while its gradients still exist.
  void take(torch::optim::Optimizer& optimizer, parameter_list const& parameters);
  void forget() { parameter_ = at::Tensor(); }

  /// Throws interference_error (E19) if the optimizer made another step with the gradients of the last update.
  void require_none(torch::optim::Optimizer& optimizer) const;

 private:
  /// Returns a number that increases with every step of the optimizer; nullopt if it keeps none.
  std::optional<std::int64_t> progress_of(torch::optim::Optimizer& optimizer) const;

  /// Computes the values that one more step of gradient descent would give a few elements; with momentum, from its buffer.
  void expect(torch::optim::Optimizer& optimizer);
  /// True if an element changed, and all have the values expected after one more step.
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

  at::Tensor parameter_;  ///< the first parameter that had a gradient
  tensor_mark gradient_;
  std::optional<std::int64_t> progress_;
  std::vector<expectation> expected_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/gradients/interference.ipp>
#endif
