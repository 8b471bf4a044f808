// Isolates the differences between LibTorch 1.13, 2.6 and 2.14.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <torch/version.h>
#if TORCH_VERSION_MAJOR < 2
#include <c10/util/string_utils.h>
#endif

#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <optional>
#include <string>
#include <vector>

namespace keel::libtorch::inline KEEL_MODE {

inline constexpr bool at_least_2 = TORCH_VERSION_MAJOR >= 2;

/// The autocast state of one device type: whether it is enabled, and its dtype.
struct autocast_state {
  bool enabled = false;
  at::ScalarType dtype = at::kBFloat16;
};

autocast_state get_autocast(at::DeviceType device);
void set_autocast(at::DeviceType device, autocast_state const& state);
/// Returns whether autocast caches casts of weights.
bool caches_casts();
void cache_casts(bool enabled);

/// Returns whether the device computes in fp16. The CPU kernels of 1.13 lack fp16 matrix products, norms and losses.
inline bool computes_in_half(at::DeviceType device) { return device != at::kCPU || at_least_2; }

/// Returns whether the device computes in bf16; tests a product of one element. All CPUs compute in bf16, some slowly.
bool computes_in_bfloat16(at::DeviceType device);

/// The key of a parameter in an optimizer's state: its address as text in 1.13, as a pointer in 2.x.
#if TORCH_VERSION_MAJOR < 2
inline std::string state_key(at::Tensor const& parameter) { return c10::guts::to_string(parameter.unsafeGetTensorImpl()); }
#else
inline void* state_key(at::Tensor const& parameter) { return parameter.unsafeGetTensorImpl(); }
#endif

/// Returns the state of LibTorch's default generator of a device, a uint8 tensor on the CPU.
at::Tensor random_state(at::DeviceType device);
void set_random_state(at::DeviceType device, at::Tensor const& state);
void seed_random(at::DeviceType device, std::uint64_t seed);
/// Returns the seed that a default generator was last given.
std::uint64_t seed_of_generator(at::DeviceType device);

/// The tensor lists of LibTorch's fused AdamW kernel.
struct fused_adamw_list {
  std::vector<at::Tensor> parameters, gradients, averages, squares, largest, steps;
};
inline constexpr bool has_fused_adamw = TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 6);
/// Applies an update with gradients divided by `scale`; changes nothing if `found_inf` is 1. Both are float scalars on the tensors' device.
void fused_adamw(fused_adamw_list& list, double lr, double beta1, double beta2, double weight_decay, double eps, bool amsgrad,
                 at::Tensor const& scale, at::Tensor const& found_inf);

inline constexpr bool has_fused_attention = at_least_2;
/// Calls LibTorch's fused attention. `mask` may be undefined.
at::Tensor fused_attention(at::Tensor const& query, at::Tensor const& key, at::Tensor const& value, at::Tensor const& mask,
                           double dropout, bool causal);

/// Bytes and counts of a device's caching allocator.
struct device_memory {
  std::int64_t allocated, peak, reserved, retries, refused;
};
std::optional<device_memory> device_memory_of(c10::Device device);
std::optional<std::int64_t> take_device_peak(c10::Device device);

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

#ifndef KEEL_COMPILED
#include <keel/libtorch/compatibility.ipp>
#endif
