// What the driver says of a GPU, beside LibTorch's own view: other programs' memory is in it, and its temperature.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <keel/libtorch/mode.hpp>
#include <optional>
#include <type_traits>

namespace keel::inline KEEL_MODE {

/// Nothing of what the driver does not say.
struct gpu_state {
  std::optional<double> memory_used;   ///< bytes, of all programs
  std::optional<double> memory_total;  ///< bytes
  std::optional<double> temperature;   ///< degrees Celsius
  std::optional<double> utilization;   ///< share of the last seconds in which a kernel ran
};

/// NVIDIA's management library (NVML), as far as it is needed. A test gives its functions.
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
  /// Of the device with this index as CUDA counts, which a program's environment may have changed; 0 where it is known.
  int (*bus_of)(char* to, int length, int index) = nullptr;

  /// The machine's, with nothing in it where there is none. It stays loaded.
  static nvml_library of_this_machine();
};

/// Reads the state of one GPU, at most once every five seconds: the driver takes its time.
class gpu_monitor {
 public:
  /// Of a CPU it never looks.
  explicit gpu_monitor(c10::Device device) : device_(device) {}
  gpu_monitor(c10::Device device, nvml_library const& library) : device_(device), library_(library), is_loaded_(true) {}

  /// The last state; nothing on a CPU, or where the driver's library is missing.
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
