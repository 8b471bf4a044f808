// Restores the training or evaluation mode of each of a model's modules at the end of a scope.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/nn/module.h>

#include <keel/libtorch/mode.hpp>
#include <memory>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

class mode_scope {
 public:
  explicit mode_scope(torch::nn::Module& model) : model_(model), was_training_(model.is_training()) {
    // Excludes the module itself, because modules() can return it only if a shared_ptr owns it.
    for (auto const& one : model.modules(/*include_self=*/false)) modes_.emplace_back(one, one->is_training());
  }
  mode_scope(mode_scope const&) = delete;
  mode_scope& operator=(mode_scope const&) = delete;
  ~mode_scope() {
    if (model_.is_training() != was_training_) model_.train(was_training_);
    // Any other effects of a module's own train() occurred when the program called it.
    for (auto const& [module, training] : modes_) {
      if (module->is_training() != training) module->train(training);
    }
  }

 private:
  torch::nn::Module& model_;
  bool was_training_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

}  // namespace keel::inline KEEL_MODE
