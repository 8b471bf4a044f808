// Definitions for gpu_state.hpp.
#pragma once

#include <dlfcn.h>

#include <array>
#include <keel/metrics/gpu_state.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY nvml_library nvml_library::of_this_machine() {
  nvml_library found;
  void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return found;
  auto const take = [](auto& function, void* from, char const* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(from, name));
  };
  take(found.initialize, library, "nvmlInit_v2");
  take(found.device_by_index, library, "nvmlDeviceGetHandleByIndex_v2");
  take(found.device_by_bus, library, "nvmlDeviceGetHandleByPciBusId_v2");
  take(found.memory_of, library, "nvmlDeviceGetMemoryInfo");
  take(found.temperature_of, library, "nvmlDeviceGetTemperature");
  take(found.utilization_of, library, "nvmlDeviceGetUtilizationRates");
  // From the CUDA runtime, which a LibTorch for GPUs has loaded.
  take(found.bus_of, RTLD_DEFAULT, "cudaDeviceGetPCIBusId");
  return found;
}

KEEL_BODY void gpu_monitor::find() {
  if (!is_loaded_) library_ = nvml_library::of_this_machine();
  is_loaded_ = true;
  if (library_.initialize == nullptr || library_.initialize() != 0) return;
  int const index = device_.has_index() ? device_.index() : 0;
  std::array<char, 64> bus{};
  bool const has_bus = library_.bus_of != nullptr && library_.device_by_bus != nullptr &&
                       library_.bus_of(bus.data(), static_cast<int>(bus.size()), index) == 0;
  is_found_ =
      has_bus ? library_.device_by_bus(bus.data(), &handle_) == 0
              : library_.device_by_index != nullptr && library_.device_by_index(static_cast<unsigned>(index), &handle_) == 0;
}

KEEL_BODY std::optional<gpu_state> gpu_monitor::read() {
  if (device_.is_cpu()) return std::nullopt;
  auto const now = clock::now();
  if (read_at_ && now - *read_at_ < interval) return last_;
  if (!read_at_) find();
  read_at_ = now;
  if (!is_found_) return std::nullopt;
  gpu_state state;
  nvml_library::memory memory{};
  if (library_.memory_of != nullptr && library_.memory_of(handle_, &memory) == 0) {
    state.memory_used = static_cast<double>(memory.used);
    state.memory_total = static_cast<double>(memory.total);
  }
  constexpr int sensor_of_the_gpu = 0;
  unsigned degrees = 0;
  if (library_.temperature_of != nullptr && library_.temperature_of(handle_, sensor_of_the_gpu, &degrees) == 0)
    state.temperature = degrees;
  nvml_library::utilization busy{};
  if (library_.utilization_of != nullptr && library_.utilization_of(handle_, &busy) == 0) state.utilization = busy.gpu / 100.0;
  last_ = state;
  return last_;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
