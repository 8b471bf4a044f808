// For an optimizer with a closure, such as LBFGS, which evaluates the loss as often as it likes and changes parameters in between:
// what it changes, as the update found it.
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
  /// Both outlive this. Throws error (S05) for an optimizer whose state no checkpoint holds.
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

/// The name of the first parameter with a value that is not finite; nothing where all are. The host waits for it.
std::optional<std::string> first_nonfinite_parameter(parameter_list const& parameters);

/// Leaves the optimizer's step from inside its closure.
struct closure_ends {};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/closure_backup.ipp>
#endif
