// recompute: drops a block's activations in the forward pass and computes them again in the backward pass (Chen et al. 2016,
// "Training Deep Nets with Sublinear Memory Cost").
//   none            the default.
//   reentrant       runs a backward pass inside the backward pass; its input must require grad (A02).
//   non_reentrant   uses saved-tensor hooks: works with partly frozen models and double backward.
// A block is a part of the model inside keel::unit (keel/recompute/unit.hpp); a loss without units is rejected (A21).
// Left out: selective recompute by operator, which pays off only with a compiler.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct recompute;
}

namespace keel {

enum class recompute_kind : unsigned char { none, reentrant, non_reentrant };

struct recompute_settings {
  recompute_kind kind = recompute_kind::none;
  friend constexpr bool operator==(recompute_settings const&, recompute_settings const&) = default;
};

/// A class instead of a namespace, so that a function may have the same name: `keel::recompute(forward, inputs..)`.
struct recompute {
  using kind = recompute_kind;
  using settings = recompute_settings;
  struct none : fills<slot::recompute> {
    static constexpr recompute_settings configured{};
  };
  struct reentrant : fills<slot::recompute> {
    static constexpr recompute_settings configured{recompute_kind::reentrant};
  };
  struct non_reentrant : fills<slot::recompute> {
    static constexpr recompute_settings configured{recompute_kind::non_reentrant};
  };
};

struct slot::recompute : slot_description {
  using settings = recompute_settings;
  using default_policy = keel::recompute::none;
  static constexpr char const* name = "recompute";
  static constexpr char const* given_twice = "D06";
  static constexpr policy_list<settings, 3> policies() {
    return {{{"none", {}}, {"reentrant", {recompute_kind::reentrant}}, {"non_reentrant", {recompute_kind::non_reentrant}}}};
  }
};

}  // namespace keel
