// Collects a model's outputs over data, without a loss.
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

/// Returns `predict_of(batch)` for each batch, in order. Records no graph, sets every module to evaluation mode, and restores
/// training modes and random state. Results may keep batch or device memory alive: return `.cpu()` if there are many.
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
