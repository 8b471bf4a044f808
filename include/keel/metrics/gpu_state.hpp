// The state of a GPU as the driver reports it. Unlike LibTorch's statistics, it includes other programs' memory and the temperature.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <keel/libtorch/mode.hpp>
#include <optional>
#include <type_traits>

namespace keel::inline KEEL_MODE {

/// Values that the driver does not report are nullopt.
struct gpu_state {
  std::optional<double> memory_used;   ///< bytes, of all programs
  std::optional<double> memory_total;  ///< bytes
  std::optional<double> temperature;   ///< degrees Celsius
  std::optional<double> utilization;   ///< share of the driver's last sampling period in which a kernel ran
};

/// The functions of NVIDIA's management library (NVML) that are used. Tests replace them.
struct nvml_library {
  struct memory {
    unsigned long long total, free, used;
  };
  struct utilization {
    unsigned gpu, memory;
  };
  using device = void*;
  int (*initialize)() = nullptr;
  int (*device_by_index)(unsigned, device*) = nullptr;
  int (*device_by_bus)(char const*, device*) = nullptr;
  int (*memory_of)(device, memory*) = nullptr;
  int (*temperature_of)(device, int sensor, unsigned*) = nullptr;
  int (*utilization_of)(device, utilization*) = nullptr;
  /// Gets the PCI bus id of a device by its CUDA index, which CUDA_VISIBLE_DEVICES may remap; returns 0 on success.
  int (*bus_of)(char* to, int length, int index) = nullptr;

  /// Returns this machine's library, with null functions if there is none. It is never unloaded.
  static nvml_library of_this_machine();
};

/// Reads the state of one GPU, at most once every five seconds, because a query is slow.
class gpu_monitor {
 public:
  /// Never reads anything for a CPU.
  explicit gpu_monitor(c10::Device device) : device_(device) {}
  gpu_monitor(c10::Device device, nvml_library const& library) : device_(device), library_(library), is_loaded_(true) {}

  /// Returns the last state; nullopt for a CPU or if the driver's library is missing.
  std::optional<gpu_state> read();

 private:
  using clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds interval{5};

  void find();

  c10::Device device_;
  nvml_library library_;
  bool is_loaded_ = false;
  bool is_found_ = false;
  nvml_library::device handle_ = nullptr;
  std::optional<clock::time_point> read_at_;
  std::optional<gpu_state> last_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/metrics/gpu_state.ipp>
#endif
