// The bodies of layer_watch.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/std_mean.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <keel/core/out_of_memory.hpp>
#include <keel/gradients/gradient_norm.hpp>
#include <keel/metrics/layer_watch.hpp>
#include <tuple>

#include <keel/core/detail/body_begin.inc>

namespace keel {

namespace detail {

/// Powers of two on both sides of 0, upper limits of buckets.
KEEL_BODY std::vector<double> distribution_limits() {
  constexpr int smallest = -24;
  constexpr int largest = 8;
  std::vector<double> limits;
  for (int power = largest; power >= smallest; --power) limits.push_back(-std::exp2(power));
  limits.push_back(0.0);
  for (int power = smallest; power <= largest; ++power) limits.push_back(std::exp2(power));
  return limits;
}

/// Sums of squares, one double a tensor, where the tensors are; the host waits for none of them.
KEEL_BODY at::Tensor squares_of(std::vector<at::Tensor> const& all) {
  auto const place = all.front().device();
  if (!place.is_cpu()) {
    std::vector<at::Tensor> defined = all;
    for (at::Tensor& one : defined) {
      if (!one.defined() || one.numel() == 0) one = at::zeros({1}, at::TensorOptions().device(place).dtype(at::kFloat));
    }
    return squares_on_device(defined).to(place);
  }
  gradient_measure const measured = measure_gradients(all);
  at::Tensor squares = at::zeros({static_cast<std::int64_t>(all.size())}, at::TensorOptions().dtype(at::kDouble));
  for (std::size_t i = 0; i < all.size(); ++i) squares.data_ptr<double>()[i] = std::pow(measured.norm_of(i), 2);
  return squares;
}

}  // namespace detail

KEEL_BODY layer_watch::layer_watch(torch::nn::Module& model, parameter_list const& parameters)
    : model_(model), parameters_(parameters) {
  for (std::string const& name : parameters.names) {
    std::size_t const end = name.rfind('.');
    std::string const layer = end == std::string::npos ? name : name.substr(0, end);
    auto const found = std::find(names_.begin(), names_.end(), layer);
    layer_of_.push_back(static_cast<std::size_t>(found - names_.begin()));
    if (found == names_.end()) names_.push_back(layer);
  }
}

KEEL_BODY void layer_watch::drop() {
  detail_ = layer_detail::none;
  has_forward_ = false;
  functions_ = 0;
  activation_names_.clear();
  activations_.clear();
  distribution_names_.clear();
  elements_.clear();
  distributions_.clear();
  gradient_squares_ = at::Tensor();
  copies_.clear();
}

KEEL_BODY void layer_watch::begin(layer_detail detail) {
  drop();
  // Tensors of several devices would have to meet on one.
  detail_ = parameters_.one_device ? detail : layer_detail::none;
}

KEEL_BODY std::string layer_watch::name_of(void const* module) {
  if (modules_.empty()) {
    for (auto const& item : model_.named_modules()) modules_.emplace_back(item.value().get(), item.key());
  }
  auto const found = std::find_if(modules_.begin(), modules_.end(), [&](auto const& one) { return one.first == module; });
  if (module == nullptr || found == modules_.end()) return "unit." + std::to_string(functions_++);
  return found->second;
}

KEEL_BODY void layer_watch::output_of_unit(void const* module, at::Tensor const& output) {
  if (!output.defined() || output.numel() == 0 || !at::isFloatingType(output.scalar_type())) return;
  at::NoGradGuard const no_grad;
  std::string const name = name_of(module);
  at::Tensor const values = output.detach();
  auto const [deviation, mean] = at::std_mean(values.to(at::kFloat), /*unbiased=*/false);
  activation_names_.push_back(name);
  activations_.push_back(at::stack({mean, deviation}).to(at::kDouble));
  if (detail_ == layer_detail::distributions) add_distribution("activations/" + name, values);
}

KEEL_BODY void layer_watch::add_distribution(std::string const& name, at::Tensor const& values, at::Tensor const& factor) {
  if (!values.defined() || values.numel() == 0 || values.layout() != at::kStrided) return;
  // Of a large tensor an even sample: its shape is the same, and its cost bounded.
  constexpr std::int64_t most = 16384;
  at::Tensor flat = values.detach().reshape({-1});
  std::int64_t const stride = (flat.numel() + most - 1) / most;
  if (stride > 1) flat = flat.slice(0, 0, flat.numel(), stride);
  flat = flat.to(at::kDouble);
  if (factor.defined()) flat = flat * factor;
  at::Tensor const sorted = std::get<0>(at::sort(flat));
  thread_local at::Tensor limits;
  if (!limits.defined() || limits.device() != sorted.device()) {
    auto const all = detail::distribution_limits();
    limits = at::zeros({static_cast<std::int64_t>(all.size())}, at::TensorOptions().dtype(at::kDouble));
    std::copy(all.begin(), all.end(), limits.data_ptr<double>());
    limits = limits.to(sorted.device());
  }
  at::Tensor const below = at::searchsorted(sorted, limits, /*out_int32=*/false, /*right=*/true).to(at::kDouble);
  at::Tensor const ends = at::stack({sorted[0], sorted[-1], sorted.sum(), sorted.square().sum()});
  distribution_names_.push_back(name);
  elements_.push_back(static_cast<double>(sorted.numel()));
  distributions_.push_back(at::cat({ends, below}));
}

KEEL_BODY void layer_watch::gradients(std::vector<at::Tensor> const& all, at::Tensor const& factor) {
  if (!is_on()) return;
  at::NoGradGuard const no_grad;
  gradient_squares_ = detail::squares_of(all);
  if (factor.defined()) gradient_squares_ = gradient_squares_ * factor.square();
  if (detail_ != layer_detail::distributions) return;
  for (std::size_t i = 0; i < all.size(); ++i) add_distribution("gradients/" + parameters_.names[i], all[i], factor);
}

KEEL_BODY void layer_watch::before_update() {
  if (!is_on()) return;
  at::NoGradGuard const no_grad;
  try {
    for (at::Tensor const& one : parameters_.tensors) copies_.push_back(one.detach().clone());
  } catch (std::exception const& thrown) {
    drop();
    if (!is_out_of_memory(thrown)) throw;
    // A look at the layers is not worth a rung.
  }
}

KEEL_BODY void layer_watch::after_update(std::int64_t update) {
  if (!is_on()) return;
  at::NoGradGuard const no_grad;
  try {
    std::vector<at::Tensor> now;
    now.reserve(copies_.size());
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      now.push_back(parameters_.tensors[i].detach());
      copies_[i].sub_(now.back());
    }
    at::Tensor const nothing = at::zeros({0}, gradient_squares_.options());
    std::vector<at::Tensor> numbers{gradient_squares_, detail::squares_of(now), detail::squares_of(copies_)};
    if (detail_ == layer_detail::distributions) {
      for (std::size_t i = 0; i < now.size(); ++i) add_distribution("weights/" + parameters_.names[i], now[i]);
    }
    for (at::Tensor const& one : activations_) numbers.push_back(one.to(nothing.device()));
    for (at::Tensor const& one : distributions_) numbers.push_back(one.to(nothing.device()));
    pending_.push_back({update, activation_names_, distribution_names_, elements_, device_reading(at::cat(numbers))});
    // Behind one that a device never finishes others must not pile up.
    constexpr std::size_t most_pending = 8;
    if (pending_.size() > most_pending) pending_.erase(pending_.begin());
  } catch (std::exception const& thrown) {
    drop();
    if (!is_out_of_memory(thrown)) throw;
    // The update took place; that nothing is known of its layers costs nothing.
  }
  drop();
}

KEEL_BODY void layer_watch::forget(std::int64_t update) {
  std::erase_if(pending_, [&](pending const& one) { return one.update == update; });
}

KEEL_BODY std::optional<layer_record> layer_watch::take(bool wait) {
  if (pending_.empty() || (!wait && !pending_.front().numbers.has_arrived())) return std::nullopt;
  layer_record found = figures_of(pending_.front());
  pending_.erase(pending_.begin());
  return found;
}

KEEL_BODY layer_record layer_watch::figures_of(pending& from) const {
  at::Tensor const numbers = from.numbers.read();
  double const* at = numbers.data_ptr<double>();
  std::size_t const count = parameters_.tensors.size();
  layer_record found;
  found.update = from.update;
  std::vector<std::array<double, 3>> sums(names_.size(), {0.0, 0.0, 0.0});
  for (std::size_t kind = 0; kind < 3; ++kind) {
    for (std::size_t i = 0; i < count; ++i) sums[layer_of_[i]][kind] += *at++;
  }
  for (std::size_t layer = 0; layer < names_.size(); ++layer) {
    double const norm = std::sqrt(sums[layer][1]);
    double const change = std::sqrt(sums[layer][2]);
    found.layers.push_back({names_[layer], std::sqrt(sums[layer][0]), norm, norm > 0.0 ? change / norm : 0.0});
  }
  for (std::string const& name : from.activations) {
    found.activations.push_back({name, at[0], at[1]});
    at += 2;
  }
  auto const limits = detail::distribution_limits();
  for (std::size_t i = 0; i < from.distributions.size(); ++i) {
    histogram values;
    values.min = at[0];
    values.max = at[1];
    values.count = from.elements[i];
    values.sum = at[2];
    values.sum_of_squares = at[3];
    double before = 0.0;
    for (std::size_t bucket = 0; bucket < limits.size(); ++bucket) {
      double const below = at[4 + bucket];
      // Neighbours without a value are one bucket.
      if (below == before && !(bucket + 1 < limits.size() && at[5 + bucket] > below)) continue;
      values.limits.push_back(limits[bucket]);
      values.counts.push_back(below - before);
      before = below;
    }
    if (before < values.count) {
      values.limits.push_back(std::max(values.max, limits.back()));
      values.counts.push_back(values.count - before);
    }
    at += 4 + limits.size();
    found.distributions.emplace_back(from.distributions[i], std::move(values));
  }
  return found;
}

}  // namespace keel

#include <keel/core/detail/body_end.inc>
