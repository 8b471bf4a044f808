// A loop over data that wants the model's outputs and no loss.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <functional>
#include <keel/data/batch_source.hpp>
#include <keel/evaluation/evaluate.hpp>
#include <type_traits>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

inline at::DeviceType device_of(torch::nn::Module const& model) {
  for (at::Tensor const& parameter : model.parameters()) return parameter.device().type();
  return at::kCPU;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// What `predict_of(batch)` returns for each of the batches, in their order: without a graph, with every module in evaluation
/// mode, and with random state and training modes put back. A result that holds memory of the batch or of the device keeps it:
/// return `.cpu()` where there are many.
template <class Batches, class PredictOf>
auto predict(torch::nn::Module& model, Batches&& batches, PredictOf&& predict_of) {
  evaluation_scope const scope(model, detail::device_of(model));
  at::NoGradGuard const no_grad;
  return detail::with_epoch(batches, 0, [&](auto at, auto const& end) {
    std::vector<std::decay_t<decltype(std::invoke(predict_of, *at))>> results;
    for (; at != end; ++at) results.push_back(std::invoke(predict_of, *at));
    return results;
  });
}

}  // namespace keel::inline KEEL_MODE
