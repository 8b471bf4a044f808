// device: facts about the device that rules ask for. Not a mechanism: the model's parameters decide where a run computes.
//   any               the default: a recipe for every device.
//   cpu, cuda         a recipe for one kind of device.
//   cuda_with<..>     graph_captured (the program captures the loop in a CUDA graph), device_assert (its kernels assert).
// Left out: the index of a device, which is the program's business.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::device {

enum class kind : unsigned char { any, cpu, cuda };

struct settings {
  device::kind kind = kind::any;
  bool graph_captured = false;
  bool device_assert = false;
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <class Fact>
concept fact = option_of<Fact, settings>;

struct graph_captured {
  static constexpr void apply(settings& to) { to.graph_captured = true; }
};
struct device_assert {
  static constexpr void apply(settings& to) { to.device_assert = true; }
};

struct any : fills<slot::device> {
  static constexpr settings configured{};
};
struct cpu : fills<slot::device> {
  static constexpr settings configured{.kind = kind::cpu};
};
template <fact... Facts>
struct cuda_with : fills<slot::device> {
  static constexpr settings configured = with_options<settings, Facts...>({.kind = kind::cuda});
};
using cuda = cuda_with<>;

}  // namespace keel::device

namespace keel {
template <>
struct settings_of<slot::device> {
  using type = device::settings;
};
template <>
struct default_policy<slot::device> {
  using type = device::any;
};
}  // namespace keel
