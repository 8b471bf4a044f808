// The optimizer of a model in a run, with all that a checkpoint needs to save it.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/optim/optimizer.h>

#include <keel/config/config.hpp>
#include <keel/core/parameters.hpp>
#include <string>

namespace keel::detail::inline KEEL_MODE {
class optimizer_shards;
}

namespace keel::inline KEEL_MODE {

/// An optimizer with its parameters and the recipe that updates it.
struct trained_optimizer {
  std::string name;  ///< name of the run's part; empty if the run has one model
  torch::optim::Optimizer* optimizer;
  parameter_list const* parameters;  ///< named as in the checkpoint's model
  config value;
  detail::optimizer_shards* shards = nullptr;  ///< shards of its state; null if each rank has all of it

  /// Prefix of its tensors' names in a checkpoint.
  std::string prefix() const { return name.empty() ? "" : name + ":"; }
};

}  // namespace keel::inline KEEL_MODE
