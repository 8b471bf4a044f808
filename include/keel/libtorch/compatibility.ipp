// Definitions for compatibility.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <torch/version.h>
#if TORCH_VERSION_MAJOR >= 2
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#endif
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 9)
#include <c10/core/CachingDeviceAllocator.h>
#endif

#include <keel/libtorch/compatibility.hpp>
#include <mutex>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::libtorch::inline KEEL_MODE {

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
KEEL_BODY autocast_state get_autocast(at::DeviceType device) {
  return {at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
}
KEEL_BODY void set_autocast(at::DeviceType device, autocast_state const& state) {
  at::autocast::set_autocast_dtype(device, state.dtype);
  at::autocast::set_autocast_enabled(device, state.enabled);
}
#else
KEEL_BODY autocast_state get_autocast(at::DeviceType device) {
  if (device == at::kCPU) return {at::autocast::is_cpu_enabled(), at::autocast::get_autocast_cpu_dtype()};
  return {at::autocast::is_enabled(), at::autocast::get_autocast_gpu_dtype()};
}
KEEL_BODY void set_autocast(at::DeviceType device, autocast_state const& state) {
  if (device == at::kCPU) {
    at::autocast::set_autocast_cpu_dtype(state.dtype);
    at::autocast::set_cpu_enabled(state.enabled);
  } else {
    at::autocast::set_autocast_gpu_dtype(state.dtype);
    at::autocast::set_enabled(state.enabled);
  }
}
#endif

KEEL_BODY bool caches_casts() { return at::autocast::is_autocast_cache_enabled(); }
KEEL_BODY void cache_casts(bool enabled) { at::autocast::set_autocast_cache_enabled(enabled); }

KEEL_BODY bool computes_in_bfloat16(at::DeviceType device) {
  if (device == at::kCPU) return true;
  at::NoGradGuard no_grad;
  try {
    at::Tensor const one = at::ones({1, 1}, at::TensorOptions().device(device).dtype(at::kBFloat16));
    return one.mm(one).item<float>() == 1.0F;
  } catch (c10::Error const&) {
    // This LibTorch lacks the kernel.
    return false;
  }
}

KEEL_BODY at::Tensor random_state(at::DeviceType device) {
  auto generator = at::globalContext().defaultGenerator(at::Device(device));
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

KEEL_BODY void set_random_state(at::DeviceType device, at::Tensor const& state) {
  auto generator = at::globalContext().defaultGenerator(at::Device(device));
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

KEEL_BODY void seed_random(at::DeviceType device, std::uint64_t seed) {
  auto generator = at::globalContext().defaultGenerator(at::Device(device));
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

KEEL_BODY std::uint64_t seed_of_generator(at::DeviceType device) {
  auto generator = at::globalContext().defaultGenerator(at::Device(device));
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.current_seed();
}

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 6)
KEEL_BODY void fused_adamw(fused_adamw_list& list, double lr, double beta1, double beta2, double weight_decay, double eps,
                           bool amsgrad, at::Tensor const& scale, at::Tensor const& found_inf) {
  at::_fused_adamw_(list.parameters, list.gradients, list.averages, list.squares, list.largest, list.steps, lr, beta1, beta2,
                    weight_decay, eps, amsgrad, /*maximize=*/false, scale, found_inf);
}
#else
KEEL_BODY void fused_adamw(fused_adamw_list&, double, double, double, double, double, bool, at::Tensor const&,
                           at::Tensor const&) {}
#endif

#if TORCH_VERSION_MAJOR < 2
KEEL_BODY at::Tensor fused_attention(at::Tensor const&, at::Tensor const&, at::Tensor const& value, at::Tensor const&, double,
                                     bool) {
  return value;
}
#else
KEEL_BODY at::Tensor fused_attention(at::Tensor const& query, at::Tensor const& key, at::Tensor const& value,
                                     at::Tensor const& mask, double dropout, bool causal) {
  if (mask.defined()) return at::scaled_dot_product_attention(query, key, value, mask, dropout, causal);
  return at::scaled_dot_product_attention(query, key, value, {}, dropout, causal);
}
#endif

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 9)
KEEL_BODY std::optional<device_memory> device_memory_of(c10::Device device) {
  auto* const allocator = c10::getDeviceAllocator(device.type());
  if (allocator == nullptr || !allocator->initialized()) return std::nullopt;
  auto const all = allocator->getDeviceStats(device.has_index() ? device.index() : 0);
  constexpr auto sum = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return device_memory{all.allocated_bytes[sum].current, all.allocated_bytes[sum].peak, all.reserved_bytes[sum].current,
                       all.num_alloc_retries, all.num_ooms};
}
KEEL_BODY std::optional<std::int64_t> take_device_peak(c10::Device device) {
  auto const now = device_memory_of(device);
  if (!now) return std::nullopt;
  c10::getDeviceAllocator(device.type())->resetPeakStats(device.has_index() ? device.index() : 0);
  return now->peak;
}
#else
KEEL_BODY std::optional<device_memory> device_memory_of(c10::Device) { return std::nullopt; }
KEEL_BODY std::optional<std::int64_t> take_device_peak(c10::Device) { return std::nullopt; }
#endif

}  // namespace keel::libtorch::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
