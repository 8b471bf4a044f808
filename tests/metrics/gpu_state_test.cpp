// What the driver says of a GPU, by a library that a test imagines.
#include "../support.hpp"

#include <keel/metrics/gpu_state.hpp>

namespace {

int begins = 0;
int reads = 0;

keel::nvml_library imagined() {
  keel::nvml_library library;
  library.initialize = [] { return ++begins, 0; };
  library.bus_of = [](char* to, int, int index) { return to[0] = static_cast<char>('0' + index), 0; };
  library.device_by_bus = [](char const* bus, keel::nvml_library::device* to) {
    *to = const_cast<char*>(bus[0] == '1' ? "second" : "other");
    return 0;
  };
  library.memory_of = [](keel::nvml_library::device, keel::nvml_library::memory* to) { return *to = {80, 60, 20}, ++reads, 0; };
  library.temperature_of = [](keel::nvml_library::device of, int, unsigned* to) {
    return *to = std::string(static_cast<char*>(of)) == "second" ? 71U : 1U, 0;
  };
  library.utilization_of = [](keel::nvml_library::device, keel::nvml_library::utilization* to) { return *to = {50, 10}, 0; };
  return library;
}

}  // namespace

TEST_CASE("a GPU's state is that of the device with its bus, read once in five seconds") {
  begins = reads = 0;
  keel::gpu_monitor monitor(c10::Device(c10::kCUDA, 1), imagined());
  for (int i = 0; i < 100; ++i) {
    auto const state = monitor.read();
    REQUIRE(state);
    CHECK(state->memory_used == 20.0);
    CHECK(state->memory_total == 80.0);
    CHECK(state->temperature == 71.0);
    CHECK(state->utilization == 0.5);
  }
  CHECK(begins == 1);
  CHECK(reads == 1);
}

TEST_CASE("a CPU has no such state, nor a driver that says nothing") {
  keel::gpu_monitor cpu(c10::Device(c10::kCPU), imagined());
  CHECK(!cpu.read());
  keel::gpu_monitor silent(c10::Device(c10::kCUDA, 0), keel::nvml_library{});
  CHECK(!silent.read());
  auto broken = imagined();
  broken.initialize = [] { return 9; };
  keel::gpu_monitor without(c10::Device(c10::kCUDA, 0), broken);
  CHECK(!without.read());
  auto partial = imagined();
  partial.temperature_of = [](keel::nvml_library::device, int, unsigned*) { return 3; };
  keel::gpu_monitor some(c10::Device(c10::kCUDA, 0), partial);
  CHECK(!some.read()->temperature);
  CHECK(some.read()->memory_used == 20.0);
}
