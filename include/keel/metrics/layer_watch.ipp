// Definitions for layer_watch.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
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
#include <limits>
#include <tuple>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Returns the upper limits of the buckets: negative and positive powers of two.
KEEL_BODY std::vector<double> distribution_limits() {
  constexpr int smallest = -24;
  constexpr int largest = 8;
  std::vector<double> limits;
  for (int power = largest; power >= smallest; --power) limits.push_back(-std::exp2(power));
  limits.push_back(0.0);
  for (int power = smallest; power <= largest; ++power) limits.push_back(std::exp2(power));
  return limits;
}

/// Number of neighbouring values in a run of a sample; a processor reads them at once.
inline constexpr std::int64_t run_of_sample = 16;
inline constexpr std::int64_t runs_of_sample = 256;

/// The layout of a sample: `runs` runs of `length` values, one run out of every `stride`.
struct sample_layout {
  explicit sample_layout(std::int64_t count) {
    if (count <= runs_of_sample * run_of_sample) {
      length = count;
      return;
    }
    std::int64_t const all = count / run_of_sample;
    // Odd, so that rows of even length are not sampled in the same columns only.
    stride = ((all + runs_of_sample - 1) / runs_of_sample) | 1;
    runs = (all + stride - 1) / stride;
    length = run_of_sample;
  }
  std::int64_t size() const { return runs * length; }

  std::int64_t runs = 1;
  std::int64_t length = 0;
  std::int64_t stride = 1;  ///< in runs
};

template <class Scalar>
void gather(Scalar const* values, std::int64_t count, std::vector<double>& to) {
  sample_layout const sample(count);
  std::size_t const before = to.size();
  to.resize(before + static_cast<std::size_t>(sample.size()));
  double* at = to.data() + before;
  for (std::int64_t run = 0; run < sample.runs; ++run) {
    Scalar const* const from = values + run * sample.stride * sample.length;
    for (std::int64_t i = 0; i < sample.length; ++i) at[i] = static_cast<double>(from[i]);
    at += sample.length;
  }
}

/// Sums of squares over a sample.
struct squares {
  double values = 0.0;
  double changes = 0.0;
};
/// Uses several accumulators, because a single one would wait for each addition.
KEEL_BODY squares squares_of(double const* now, double const* before, std::size_t count) {
  constexpr std::size_t together = 8;
  std::array<double, together> values{};
  std::array<double, together> changes{};
  auto const add = [&](std::size_t sum, std::size_t i) {
    double const change = now[i] - before[i];
    values[sum] += now[i] * now[i];
    changes[sum] += change * change;
  };
  std::size_t i = 0;
  for (; i + together <= count; i += together) {
    for (std::size_t sum = 0; sum < together; ++sum) add(sum, i + sum);
  }
  for (std::size_t sum = 0; i < count; ++i, ++sum) add(sum, i);
  squares all;
  for (std::size_t sum = 0; sum < together; ++sum) {
    all.values += values[sum];
    all.changes += changes[sum];
  }
  return all;
}

/// Appends the sample of a tensor on the CPU. LibTorch's operators would take longer than the values.
KEEL_BODY void gather_sample(at::Tensor const& tensor, std::vector<double>& to) {
  at::Tensor const flat = tensor.is_contiguous() ? tensor : tensor.contiguous();
  switch (flat.scalar_type()) {
    case at::kFloat:
      return gather(flat.data_ptr<float>(), flat.numel(), to);
    case at::kDouble:
      return gather(flat.data_ptr<double>(), flat.numel(), to);
    case at::kBFloat16:
      return gather(flat.data_ptr<at::BFloat16>(), flat.numel(), to);
    case at::kHalf:
      return gather(flat.data_ptr<at::Half>(), flat.numel(), to);
    default: {
      at::Tensor const wide = flat.to(at::kDouble);
      return gather(wide.data_ptr<double>(), wide.numel(), to);
    }
  }
}
/// Returns the sample of a tensor on a device, as doubles on that device.
KEEL_BODY at::Tensor sample_on_device(at::Tensor const& tensor) {
  at::Tensor const flat = tensor.detach().reshape({-1});
  sample_layout const sample(flat.numel());
  if (sample.runs == 1) return flat.to(at::kDouble);
  std::int64_t const all = flat.numel() / sample.length;
  at::Tensor const runs = flat.slice(0, 0, all * sample.length).view({all, sample.length}).slice(0, 0, all, sample.stride);
  return runs.to(at::kDouble).reshape({-1});
}

KEEL_BODY at::Tensor as_tensor(std::vector<double> const& values) {
  at::Tensor all = at::empty({static_cast<std::int64_t>(values.size())}, at::TensorOptions().dtype(at::kDouble));
  std::copy(values.begin(), values.end(), all.data_ptr<double>());
  return all;
}

/// Returns mean and standard deviation of a sample on the CPU.
KEEL_BODY at::Tensor mean_and_deviation(at::Tensor const& values) {
  std::vector<double> sample;
  gather_sample(values, sample);
  auto const count = static_cast<double>(sample.size());
  double sum = 0.0;
  for (double const one : sample) sum += one;
  double const mean = sum / count;
  double squares = 0.0;
  for (double const one : sample) squares += (one - mean) * (one - mean);
  return as_tensor({mean, std::sqrt(squares / count)});
}
KEEL_BODY at::Tensor mean_and_deviation_on_device(at::Tensor const& values) {
  auto const [deviation, mean] = at::std_mean(values.to(at::kFloat), /*unbiased=*/false);
  return at::stack({mean, deviation}).to(at::kDouble);
}

/// Returns the extremes and counts in the layout of add_distribution, for values on the CPU.
KEEL_BODY std::vector<double> distribution_of(std::vector<double> const& values) {
  constexpr int powers = 33;
  constexpr int zero = powers;
  constexpr int smallest = -24;
  constexpr int largest = 8;
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  double sum = 0.0;
  double squares = 0.0;
  std::array<double, 2 * powers + 2> counts{};
  for (double const value : values) {
    low = std::min(low, value);
    high = std::max(high, value);
    sum += value;
    squares += value * value;
    int exponent = 0;
    double const mantissa = std::frexp(std::abs(value), &exponent);
    std::size_t bucket = zero;
    if (value > 0.0) {
      // The smallest power of two that is not below the value.
      int const power = mantissa == 0.5 ? exponent - 1 : exponent;
      bucket = power > largest ? 2 * powers + 1 : static_cast<std::size_t>(zero + 1 + std::max(power, smallest) - smallest);
    } else if (value < 0.0) {
      int const power = exponent - 1;
      if (power >= smallest) bucket = static_cast<std::size_t>(largest - std::min(power, largest));
    }
    ++counts[bucket];
  }
  std::vector<double> all{low, high, sum, squares};
  double below = 0.0;
  for (std::size_t i = 0; i + 1 < counts.size(); ++i) all.push_back(below += counts[i]);
  return all;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY layer_watch::layer_watch(torch::nn::Module& model, parameter_list const& parameters)
    : model_(model), parameters_(parameters) {
  parameters_changed();
}

KEEL_BODY void layer_watch::parameters_changed() {
  layer_of_.clear();
  names_.clear();
  for (std::string const& name : parameters_.names) {
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
  sampled_.clear();
  slices_.clear();
}

KEEL_BODY void layer_watch::begin(layer_detail detail) {
  drop();
  // Tensors on several devices would have to be copied to one.
  detail_ = parameters_.one_device ? detail : layer_detail::none;
}

KEEL_BODY std::string layer_watch::name_of(void const* module) {
  if (modules_.empty()) {
    // The model itself is excluded because a shared pointer need not own it.
    for (auto const& item : model_.named_modules("", /*include_self=*/false))
      modules_.emplace_back(item.value().get(), item.key());
    modules_.emplace_back(&model_, "model");
  }
  auto const found = std::find_if(modules_.begin(), modules_.end(), [&](auto const& one) { return one.first == module; });
  if (module == nullptr || found == modules_.end()) return "unit." + std::to_string(functions_++);
  return found->second;
}

KEEL_BODY void layer_watch::output_of_unit(void const* module, at::Tensor const& output) {
  if (!output.defined() || output.numel() == 0 || !at::isFloatingType(output.scalar_type())) return;
  look([&] {
    std::string const name = name_of(module);
    at::Tensor const values = output.detach();
    activations_.push_back(values.device().is_cpu() ? detail::mean_and_deviation(values)
                                                    : detail::mean_and_deviation_on_device(values));
    activation_names_.push_back(name);
    if (detail_ == layer_detail::distributions) add_distribution("activations/" + name, values);
  });
}

template <class Look>
void layer_watch::look(Look const& does) {
  if (!is_on()) return;
  at::NoGradGuard const no_grad;
  try {
    does();
  } catch (std::exception const& thrown) {
    drop();
    if (!is_out_of_memory(thrown)) throw;
    // The run continues without this measurement.
  }
}

KEEL_BODY void layer_watch::add_distribution(std::string const& name, at::Tensor const& values, at::Tensor const& factor) {
  if (!values.defined() || values.numel() == 0 || values.layout() != at::kStrided) return;
  if (values.device().is_cpu()) {
    std::vector<double> sample;
    detail::gather_sample(values.detach(), sample);
    double const scale = factor.defined() ? factor.item<double>() : 1.0;
    for (double& one : sample) one *= scale;
    distribution_names_.push_back(name);
    elements_.push_back(static_cast<double>(sample.size()));
    distributions_.push_back(detail::as_tensor(detail::distribution_of(sample)));
    return;
  }
  at::Tensor flat = detail::sample_on_device(values);
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

KEEL_BODY void layer_watch::gradients(std::vector<double> const& norms, double factor) {
  look([&] {
    std::vector<double> squares;
    squares.reserve(norms.size());
    for (double const norm : norms) squares.push_back(norm * norm);
    gradient_squares_ = detail::as_tensor(squares);
    if (detail_ != layer_detail::distributions) return;
    at::Tensor const unscaling =
        at::full({}, factor, at::TensorOptions().dtype(at::kDouble).device(parameters_.tensors.front().device()));
    for (std::size_t i = 0; i < norms.size(); ++i)
      add_distribution("gradients/" + parameters_.names[i], parameters_.tensors[i].grad(), unscaling);
  });
}

KEEL_BODY at::Tensor layer_watch::squares_of_gradients() const {
  std::vector<at::Tensor> all;
  all.reserve(parameters_.tensors.size());
  auto const place = parameters_.tensors.front().device();
  for (at::Tensor const& one : parameters_.tensors) all.push_back(one.grad());
  if (place.is_cpu()) {
    gradient_measure const measured = measure_gradients(all);
    std::vector<double> squares;
    squares.reserve(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) squares.push_back(std::pow(measured.norm_of(i), 2));
    return detail::as_tensor(squares);
  }
  for (at::Tensor& one : all) {
    if (!one.defined() || one.numel() == 0) one = at::zeros({1}, at::TensorOptions().device(place).dtype(at::kFloat));
  }
  return squares_on_device(all);
}

KEEL_BODY void layer_watch::gradients(at::Tensor const& factor) {
  look([&] {
    gradient_squares_ = squares_of_gradients() * factor.square();
    if (detail_ != layer_detail::distributions) return;
    for (std::size_t i = 0; i < parameters_.tensors.size(); ++i)
      add_distribution("gradients/" + parameters_.names[i], parameters_.tensors[i].grad(), factor);
  });
}

KEEL_BODY void layer_watch::before_update() {
  look([&] {
    for (at::Tensor const& one : parameters_.tensors) {
      if (one.device().is_cpu()) {
        detail::gather_sample(one.detach(), sampled_);
      } else {
        slices_.push_back(detail::sample_on_device(one).clone());
      }
    }
  });
}

KEEL_BODY void layer_watch::after_update(std::int64_t update) {
  look([&] {
    std::vector<at::Tensor> numbers{gradient_squares_};
    if (slices_.empty()) {
      std::vector<double> norms;
      std::vector<double> changes;
      std::vector<double> now;
      std::size_t before = 0;
      for (at::Tensor const& one : parameters_.tensors) {
        now.clear();
        detail::gather_sample(one.detach(), now);
        detail::squares const sums = detail::squares_of(now.data(), sampled_.data() + before, now.size());
        before += now.size();
        double const scale = now.empty() ? 0.0 : static_cast<double>(one.numel()) / static_cast<double>(now.size());
        norms.push_back(sums.values * scale);
        changes.push_back(sums.changes * scale);
      }
      numbers.push_back(detail::as_tensor(norms));
      numbers.push_back(detail::as_tensor(changes));
    } else {
      std::vector<at::Tensor> norms;
      std::vector<at::Tensor> changes;
      for (std::size_t i = 0; i < slices_.size(); ++i) {
        at::Tensor const& one = parameters_.tensors[i];
        at::Tensor const now = detail::sample_on_device(one);
        double const scale = static_cast<double>(one.numel()) / static_cast<double>(std::max<std::int64_t>(now.numel(), 1));
        norms.push_back(now.square().sum() * scale);
        changes.push_back((now - slices_[i]).square().sum() * scale);
      }
      numbers.push_back(at::stack(norms));
      numbers.push_back(at::stack(changes));
    }
    if (detail_ == layer_detail::distributions) {
      for (std::size_t i = 0; i < parameters_.tensors.size(); ++i)
        add_distribution("weights/" + parameters_.names[i], parameters_.tensors[i]);
    }
    for (at::Tensor const& one : activations_) numbers.push_back(one);
    for (at::Tensor const& one : distributions_) numbers.push_back(one);
    auto const place = parameters_.tensors.front().device();
    for (at::Tensor& one : numbers) one = one.to(place);
    pending_.push_back({update, activation_names_, distribution_names_, elements_, device_reading(at::cat(numbers))});
    // If a device never finishes a copy, further ones must not accumulate.
    constexpr std::size_t max_pending = 8;
    if (pending_.size() > max_pending) pending_.erase(pending_.begin());
  });
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
      // Merges neighbouring empty buckets.
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

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
