// offload: what is moved off the device while it is not needed.
//   none        the default.
//   optimizer   the optimizer's state is stored in host memory.
// Left out: activations (recompute saves the same memory at lower cost) and parameters (shard::zero<3>).
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct offload;
}

namespace keel::offload {

enum class kind : unsigned char { none, optimizer };

struct settings {
  offload::kind kind = kind::none;
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

struct none : fills<slot::offload> {
  static constexpr settings configured{};
};
struct optimizer : fills<slot::offload> {
  static constexpr settings configured{kind::optimizer};
};

}  // namespace keel::offload

namespace keel {

struct slot::offload : slot_description {
  using settings = keel::offload::settings;
  using default_policy = keel::offload::none;
  static constexpr char const* name = "offload";
  static constexpr char const* given_twice = "D07";
  static constexpr policy_list<settings, 2> policies() {
    return {{{"none", {}}, {"optimizer", {keel::offload::kind::optimizer}}}};
  }
};

}  // namespace keel
