// A loss over data without a graph: inference mode, modules in evaluation mode, random state and training modes put back.
#pragma once

#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <keel/error.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/loop/batch_source.hpp>
#include <keel/policy/precision.hpp>
#include <keel/step/batch.hpp>
#include <keel/step/loss.hpp>
#include <memory>
#include <utility>
#include <vector>

namespace keel {

/// Puts every module of a model into evaluation mode, and back into the mode that each had.
class evaluation_scope {
 public:
  evaluation_scope(torch::nn::Module& model, at::DeviceType device)
      : model_(model), training_(model.is_training()), random_(random_snapshot::take(device)) {
    // Without the model itself, which need not be held by a shared pointer.
    for (auto const& module : model.modules(/*include_self=*/false)) modes_.emplace_back(module, module->is_training());
    model.eval();
  }
  evaluation_scope(evaluation_scope const&) = delete;
  evaluation_scope& operator=(evaluation_scope const&) = delete;
  ~evaluation_scope() {
    // A module's mode goes down to its children, which come after it and then get their own.
    model_.train(training_);
    for (auto const& [module, training] : modes_) module->train(training);
    random_.restore();
  }

 private:
  torch::nn::Module& model_;
  bool training_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
  random_snapshot random_;
};

/// Weighted mean of `loss_of` over the batches. Nothing in it can record a graph (E01). Throws data_error (E06) without
/// batches.
template <class Autocast, class Source, class LossOf>
double evaluate(torch::nn::Module& model, at::DeviceType device, precision::kind precision, Source& batches, LossOf& loss_of) {
  evaluation_scope scope(model, device);
  c10::InferenceMode inference;
  double sum = 0.0;
  double weight = 0.0;
  detail::with_epoch(batches, 0, [&](auto at, auto const& end) {
    for (; at != end; ++at) {
      auto&& batch = *at;
      weighted_loss loss;
      {
        Autocast autocast(device, precision);
        loss = as_weighted_loss(loss_of(batch), batch_traits<std::remove_cvref_t<decltype(batch)>>::rows(batch));
      }
      sum += host_value(loss.mean) * loss.weight;
      weight += loss.weight;
    }
  });
  if (weight == 0.0)
    throw data_error("E06", "there is nothing to evaluate: the batches are empty. Give evaluate at least one batch.");
  return sum / weight;
}

}  // namespace keel
