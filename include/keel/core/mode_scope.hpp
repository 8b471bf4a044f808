// The modes of a model's modules, training or evaluation, as they were, whatever is made of them meanwhile.
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
    // Without itself, which a module that is not in a shared_ptr cannot be asked for.
    for (auto const& one : model.modules(/*include_self=*/false)) modes_.emplace_back(one, one->is_training());
  }
  mode_scope(mode_scope const&) = delete;
  mode_scope& operator=(mode_scope const&) = delete;
  ~mode_scope() {
    if (model_.is_training() != was_training_) model_.train(was_training_);
    // What a module's own train() would do beside its flag happened when the program called it.
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
