// model: facts about the model that rules ask for. Not a mechanism: a statement, which the trainer compares with the model.
//   all_trainable    the default: every parameter requires grad.
//   partly_frozen    some do not: adapters, a frozen backbone (A02, A03).
// Left out: facts that the trainer can see in the model alone at no risk, such as its number of parameters.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::model {

struct settings {
  bool partly_frozen = false;
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

struct all_trainable : fills<slot::model> {
  static constexpr settings configured{};
};
struct partly_frozen : fills<slot::model> {
  static constexpr settings configured{true};
};

}  // namespace keel::model

namespace keel {
template <>
struct settings_of<slot::model> {
  using type = model::settings;
};
template <>
struct default_policy<slot::model> {
  using type = model::all_trainable;
};
}  // namespace keel
