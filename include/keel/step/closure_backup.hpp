// A backup of parameters and optimizer state for a closure optimizer such as LBFGS, which evaluates the loss several times and changes
// parameters in between.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <keel/core/parameters.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

class closure_backup {
 public:
  /// Copies parameters and optimizer state; both arguments must outlive this object. Throws error (S05) if checkpoints do not support the
  /// optimizer.
  closure_backup(torch::optim::Optimizer& optimizer, parameter_list const& parameters);
  ~closure_backup();
  closure_backup(closure_backup const&) = delete;
  closure_backup& operator=(closure_backup const&) = delete;

  void restore();

 private:
  struct optimizer_copy;

  torch::optim::Optimizer& optimizer_;
  parameter_list const& parameters_;
  std::vector<at::Tensor> values_;
  std::unique_ptr<optimizer_copy> state_;
};

/// The name of the first parameter with a non-finite value; nullopt if all are finite. Synchronizes with the device.
std::optional<std::string> first_nonfinite_parameter(parameter_list const& parameters);

/// Thrown inside the closure to leave the optimizer's step.
struct closure_abort {};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/closure_backup.ipp>
#endif
