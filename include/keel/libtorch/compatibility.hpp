// The one place that knows how LibTorch 1.13, 2.6 and 2.14 differ.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/Allocator.h>
#include <torch/optim/optimizer.h>
#include <torch/version.h>
#if TORCH_VERSION_MAJOR < 2
#include <c10/util/string_utils.h>
#else
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#endif
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 9)
#include <c10/core/CachingDeviceAllocator.h>
#endif

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace keel::libtorch::inline KEEL_MODE {

inline constexpr bool at_least_2 = TORCH_VERSION_MAJOR >= 2;

/// Autocast of one device type: whether it is on, and to which type.
struct autocast_state {
  bool enabled = false;
  at::ScalarType dtype = at::kBFloat16;
};

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
inline autocast_state get_autocast(at::DeviceType device) {
  return {at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
}
inline void set_autocast(at::DeviceType device, autocast_state const& state) {
  at::autocast::set_autocast_dtype(device, state.dtype);
  at::autocast::set_autocast_enabled(device, state.enabled);
}
#else
inline autocast_state get_autocast(at::DeviceType device) {
  if (device == at::kCPU) return {at::autocast::is_cpu_enabled(), at::autocast::get_autocast_cpu_dtype()};
  return {at::autocast::is_enabled(), at::autocast::get_autocast_gpu_dtype()};
}
inline void set_autocast(at::DeviceType device, autocast_state const& state) {
  if (device == at::kCPU) {
    at::autocast::set_autocast_cpu_dtype(state.dtype);
    at::autocast::set_cpu_enabled(state.enabled);
  } else {
    at::autocast::set_autocast_gpu_dtype(state.dtype);
    at::autocast::set_enabled(state.enabled);
  }
}
#endif

/// The CPU kernels of 1.13 lack fp16 matrix products, norms and losses; 2.x has them.
inline bool computes_in_half(at::DeviceType device) { return device != at::kCPU || at_least_2; }

/// Asks a product of one element; CPUs compute bf16 everywhere, if slowly.
inline bool computes_in_bfloat16(at::DeviceType device) {
  if (device == at::kCPU) return true;
  at::NoGradGuard no_grad;
  try {
    at::Tensor const one = at::ones({1, 1}, at::TensorOptions().device(device).dtype(at::kBFloat16));
    return one.mm(one).item<float>() == 1.0F;
  } catch (c10::Error const&) {
    // That there is no such kernel is the answer.
    return false;
  }
}

/// The key of a parameter in an optimizer's state: its address as text in 1.13, as a pointer in 2.x.
#if TORCH_VERSION_MAJOR < 2
inline std::string state_key(at::Tensor const& parameter) { return c10::guts::to_string(parameter.unsafeGetTensorImpl()); }
#else
inline void* state_key(at::Tensor const& parameter) { return parameter.unsafeGetTensorImpl(); }
#endif

/// The state of LibTorch's default generator of a device, a uint8 tensor on the CPU.
inline at::Tensor random_state(at::DeviceType device) {
  auto generator = at::globalContext().defaultGenerator(at::Device(device));
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

inline void set_random_state(at::DeviceType device, at::Tensor const& state) {
  auto generator = at::globalContext().defaultGenerator(at::Device(device));
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

inline void seed_random(at::DeviceType device, std::uint64_t seed) {
  auto generator = at::globalContext().defaultGenerator(at::Device(device));
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

/// The seed that a default generator was given last.
inline std::uint64_t seed_of_generator(at::DeviceType device) {
  auto generator = at::globalContext().defaultGenerator(at::Device(device));
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.current_seed();
}

/// LibTorch's AdamW in one kernel over a list of tensors.
struct fused_adamw_list {
  std::vector<at::Tensor> parameters, gradients, averages, squares, largest, steps;
};
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 6)
inline constexpr bool has_fused_adamw = true;
/// `scale` divides the gradients and `found_inf` 1 leaves all as it is: float scalars on the tensors' device.
inline void fused_adamw(fused_adamw_list& list, double lr, double beta1, double beta2, double weight_decay, double eps,
                        bool amsgrad, at::Tensor const& scale, at::Tensor const& found_inf) {
  at::_fused_adamw_(list.parameters, list.gradients, list.averages, list.squares, list.largest, list.steps, lr, beta1, beta2,
                    weight_decay, eps, amsgrad, /*maximize=*/false, scale, found_inf);
}
#else
inline constexpr bool has_fused_adamw = false;
inline void fused_adamw(fused_adamw_list&, double, double, double, double, double, bool, at::Tensor const&, at::Tensor const&) {
}
#endif

#if TORCH_VERSION_MAJOR < 2
inline constexpr bool has_fused_attention = false;
inline at::Tensor fused_attention(at::Tensor const&, at::Tensor const&, at::Tensor const& value, at::Tensor const&, double,
                                  bool) {
  return value;
}
#else
inline constexpr bool has_fused_attention = true;
/// `mask` may be undefined.
inline at::Tensor fused_attention(at::Tensor const& query, at::Tensor const& key, at::Tensor const& value,
                                  at::Tensor const& mask, double dropout, bool causal) {
  if (mask.defined()) return at::scaled_dot_product_attention(query, key, value, mask, dropout, causal);
  return at::scaled_dot_product_attention(query, key, value, {}, dropout, causal);
}
#endif

/// Bytes and counts of a device's caching allocator.
struct device_memory {
  std::int64_t allocated, peak, reserved, retries, refused;
};
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 9)
inline std::optional<device_memory> device_memory_of(c10::Device device) {
  auto* const allocator = c10::getDeviceAllocator(device.type());
  if (allocator == nullptr || !allocator->initialized()) return std::nullopt;
  auto const all = allocator->getDeviceStats(device.has_index() ? device.index() : 0);
  constexpr auto sum = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return device_memory{all.allocated_bytes[sum].current, all.allocated_bytes[sum].peak, all.reserved_bytes[sum].current,
                       all.num_alloc_retries, all.num_ooms};
}
inline std::optional<std::int64_t> take_device_peak(c10::Device device) {
  auto const now = device_memory_of(device);
  if (!now) return std::nullopt;
  c10::getDeviceAllocator(device.type())->resetPeakStats(device.has_index() ? device.index() : 0);
  return now->peak;
}
#else
inline std::optional<device_memory> device_memory_of(c10::Device) { return std::nullopt; }
inline std::optional<std::int64_t> take_device_peak(c10::Device) { return std::nullopt; }
#endif

/// The base of a CPU allocator: `allocate` is const in 1.13 only, and 2.3 added copy_data.
class cpu_allocator : public c10::Allocator {
 public:
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
  c10::DataPtr allocate(std::size_t bytes) final { return take(bytes); }
  void copy_data(void* to, void const* from, std::size_t bytes) const final { default_copy_data(to, from, bytes); }
#else
  c10::DataPtr allocate(std::size_t bytes) const final { return take(bytes); }
#endif

 protected:
  virtual c10::DataPtr take(std::size_t bytes) const = 0;
};

}  // namespace keel::libtorch::inline KEEL_MODE
