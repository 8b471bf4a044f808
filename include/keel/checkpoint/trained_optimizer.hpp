// An optimizer of a run, as a checkpoint holds it.
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

/// With the recipe that it is updated by.
struct trained_optimizer {
  std::string name;  ///< of the run's part; empty where the run is one model
  torch::optim::Optimizer* optimizer;
  parameter_list const* parameters;  ///< by their names in the checkpoint's model
  config value;
  detail::optimizer_shards* shards = nullptr;  ///< of its state, where each of several ranks has some

  /// What the names of its tensors begin with in a checkpoint.
  std::string prefix() const { return name.empty() ? "" : name + ":"; }
};

}  // namespace keel::inline KEEL_MODE
