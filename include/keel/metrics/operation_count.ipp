// Definitions for operation_count.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <keel/core/operation_observer.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/metrics/operation_count.hpp>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Returns the sizes of an input; empty if it is not a dense tensor.
KEEL_BODY std::vector<double> sizes_of(at::RecordFunction const& operation, std::size_t input) {
  auto const inputs = inputs_of(operation);
  if (input >= inputs.size() || !inputs[input].isTensor()) return {};
  at::Tensor const& tensor = inputs[input].toTensor();
  if (!tensor.defined() || tensor.layout() != at::kStrided) return {};
  return {tensor.sizes().begin(), tensor.sizes().end()};
}

/// Counts the product of [.., m, k] and [.., k, n].
KEEL_BODY double operations_of_product(std::vector<double> const& left, std::vector<double> const& right) {
  if (left.size() < 2 || left.size() != right.size()) return 0.0;
  double operations = 2.0 * right.back();
  for (double const size : left) operations *= size;
  return operations;
}

/// Counts one pass of a convolution, in which a kernel is applied at each of the `positions`.
KEEL_BODY double operations_of_kernel(std::vector<double> const& positions, std::vector<double> const& weight) {
  if (positions.size() < 3 || weight.size() != positions.size()) return 0.0;
  double operations = 2.0 * positions[0];
  for (std::size_t i = 2; i < positions.size(); ++i) operations *= positions[i];
  // A weight is [out, in / groups, ..], or transposed [in, out / groups, ..]. Every element is used once per position.
  for (double const size : weight) operations *= size;
  return operations;
}

KEEL_BODY double operations_of_convolution(at::RecordFunction const& operation) {
  auto const inputs = inputs_of(operation);
  auto positions = sizes_of(operation, 0);
  auto const weight = sizes_of(operation, 1);
  if (inputs.size() < 9 || positions.size() < 3 || weight.size() != positions.size()) return 0.0;
  // A transposed convolution applies a kernel at every position of the input, any other at every position of the output.
  if (inputs[6].isBool() && inputs[6].toBool()) return operations_of_kernel(positions, weight);
  auto const lengths = [&](std::size_t input) {
    auto all = inputs[input].isIntList() ? inputs[input].toIntVector() : std::vector<std::int64_t>{};
    all.resize(positions.size() - 2, all.empty() ? 1 : all.back());
    return all;
  };
  auto const stride = lengths(3);
  auto const padding = lengths(4);
  auto const dilation = lengths(5);
  for (std::size_t i = 2; i < positions.size(); ++i) {
    auto const length = static_cast<std::int64_t>(positions[i]) + 2 * padding[i - 2] -
                        dilation[i - 2] * (static_cast<std::int64_t>(weight[i]) - 1) - 1;
    std::int64_t const steps = length / std::max<std::int64_t>(stride[i - 2], 1);
    positions[i] = static_cast<double>(steps + 1);
  }
  return operations_of_kernel(positions, weight);
}

/// Counts the gradients for input and weight, if they are requested.
KEEL_BODY double operations_of_convolution_backward(at::RecordFunction const& operation) {
  auto const inputs = inputs_of(operation);
  if (inputs.size() < 11) return 0.0;
  bool const is_transposed = inputs[7].isBool() && inputs[7].toBool();
  double const one = operations_of_kernel(sizes_of(operation, is_transposed ? 1 : 0), sizes_of(operation, 2));
  auto const mask = inputs[10].isBoolList() ? inputs[10].toBoolList().vec() : std::vector<bool>{true, true, false};
  return one * ((mask.size() > 0 && mask[0] ? 1.0 : 0.0) + (mask.size() > 1 && mask[1] ? 1.0 : 0.0));
}

/// Counts two products forward. The backward pass has five: a recomputed one and four for the gradients.
KEEL_BODY double operations_of_attention(at::RecordFunction const& operation, bool backward) {
  std::size_t const first = backward ? 1 : 0;
  auto const query = sizes_of(operation, first);
  auto const key = sizes_of(operation, first + 1);
  auto const value = sizes_of(operation, first + 2);
  if (query.size() != 4 || key.size() != 4 || value.size() != 4) return 0.0;
  double const scores = 2.0 * query[0] * query[1] * query[2] * key[2];
  double const forward = scores * (query[3] + value[3]);
  return backward ? 2.5 * forward : forward;
}

class operation_counter final : public operation_observer {
 public:
  double count() const { return count_.load(); }

  std::unique_ptr<at::ObserverContext> began(at::RecordFunction const& operation) override {
    // An operation may call others, which are part of it.
    if (inside() == this) return nullptr;
    double const operations = operations_of(operation);
    if (operations == 0.0) return nullptr;
    double before = count_.load();
    while (!count_.compare_exchange_weak(before, before + operations)) {
    }
    return std::make_unique<at_end>(std::exchange(inside(), this));
  }
  void ended(at::RecordFunction const&, at::ObserverContext& context) override {
    inside() = static_cast<at_end&>(context).outer;
  }

 private:
  struct at_end : at::ObserverContext {
    explicit at_end(operation_counter const* before) : outer(before) {}
    operation_counter const* outer;
  };
  static operation_counter const*& inside() {
    thread_local operation_counter const* of_this_thread = nullptr;
    return of_this_thread;
  }
  std::atomic<double> count_{0.0};
};

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY double operations_of(at::RecordFunction const& operation) {
  std::string_view const name = operation.name();
  auto const product = [&](std::size_t first) {
    return detail::operations_of_product(detail::sizes_of(operation, first), detail::sizes_of(operation, first + 1));
  };
  if (name == "aten::mm" || name == "aten::bmm") return product(0);
  if (name == "aten::addmm" || name == "aten::baddbmm" || name == "aten::addbmm" || name == "aten::_addmm_activation")
    return product(1);
  if (name == "aten::mv" || name == "aten::addmv") {
    auto const matrix = detail::sizes_of(operation, name == "aten::mv" ? 0 : 1);
    return matrix.size() == 2 ? 2.0 * matrix[0] * matrix[1] : 0.0;
  }
  if (name == "aten::linear") {
    auto const input = detail::sizes_of(operation, 0);
    auto const weight = detail::sizes_of(operation, 1);
    if (input.empty() || weight.size() != 2) return 0.0;
    double operations = 2.0 * weight[0];
    for (double const size : input) operations *= size;
    return operations;
  }
  if (name == "aten::convolution" || name == "aten::convolution_overrideable")
    return detail::operations_of_convolution(operation);
  if (name == "aten::convolution_backward" || name == "aten::convolution_backward_overrideable")
    return detail::operations_of_convolution_backward(operation);
  bool const is_attention = name.starts_with("aten::_scaled_dot_product_") && name.find("math") == std::string_view::npos &&
                            name != "aten::_scaled_dot_product_attention";
  if (is_attention) return detail::operations_of_attention(operation, name.ends_with("_backward"));
  return 0.0;
}

KEEL_BODY double count_operations(std::function<void()> const& run) {
  detail::operation_counter counter;
  operation_observer::scope const scope(counter, {.inputs = true});
  run();
  return counter.count();
}

KEEL_BODY double measured_peak(c10::Device device, c10::ScalarType dtype) {
  at::NoGradGuard const no_grad;
  using clock = std::chrono::steady_clock;
  std::int64_t const size = device.is_cpu() ? 768 : 4096;
  auto const options = at::TensorOptions().device(device).dtype(dtype);
  at::Tensor const left = at::full({size, size}, 0.5, options);
  at::Tensor const right = at::full({size, size}, 0.25, options);
  double const operations = 2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size);
  double best = 0.0;
  auto const began = clock::now();
  constexpr int most_rounds = 12;
  constexpr std::chrono::milliseconds longest(500);
  // The first round loads the library's kernels.
  for (int round = 0; round < most_rounds; ++round) {
    auto const start = clock::now();
    at::Tensor const product = at::mm(left, right);
    // Synchronizes with the device.
    host_value(product.select(0, 0).select(0, 0));
    double const seconds = std::chrono::duration<double>(clock::now() - start).count();
    if (seconds > 0.0) best = std::max(best, operations / seconds);
    if (clock::now() - began > longest && round > 1) break;
  }
  return best;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
