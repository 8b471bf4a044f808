// device: facts about the device that rules need. The model's parameters determine where a run computes.
//   any               the default: a recipe for every device.
//   cpu, cuda         a recipe for one kind of device.
//   cuda_with<..>     device_assert: the device's kernels contain assertions.
// Left out: the index of a device, which the program chooses.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct device;
}

namespace keel::device {

enum class kind : unsigned char { any, cpu, cuda };

struct settings {
  device::kind kind = kind::any;
  bool device_assert = false;  ///< the device's kernels contain assertions
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <class Fact>
concept fact = option_of<Fact, settings>;

struct device_assert : sets<&settings::device_assert, true> {};

struct any : fills<slot::device> {
  static constexpr settings configured{};
};
struct cpu : fills<slot::device> {
  static constexpr settings configured{.kind = kind::cpu};
};
template <fact... Facts>
struct cuda_with : configures<slot::device, settings{.kind = kind::cuda}, Facts...> {};
using cuda = cuda_with<>;

}  // namespace keel::device

namespace keel {

struct slot::device : slot_description {
  using settings = keel::device::settings;
  using default_policy = keel::device::any;
  static constexpr char const* name = "device";
  static constexpr char const* given_twice = "D27";
  static constexpr policy_list<settings, 3> policies() {
    return {{{"any", {}},
             {"cpu", {keel::device::kind::cpu}},
             {.name = "cuda", .start = {keel::device::kind::cuda}, .fields = "*", .typed = "cuda"}}};
  }
  static constexpr void fields(auto& s, auto& field) { field.truth("device_assert", s.device_assert); }
};

}  // namespace keel
