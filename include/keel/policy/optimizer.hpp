// optimizer: facts about the optimizer that rules ask for. Not a mechanism: a statement, which the trainer completes with what
// it knows of the optimizer's type.
//   usual        the default: element-wise, one pass, no scaler of its own; LibTorch's Adam, AdamW, SGD, RMSprop, Adagrad.
//   is<Facts..>  closure (evaluates the loss from inside its step, as LBFGS does), unscales (divides by the loss scale by
//                itself), whole_tensors (an update needs whole parameters: LAMB, Muon, Shampoo), device_only (its kernels take
//                no host memory), state_on_host (keeps its moments in host memory by itself).
// An optimizer type says it of itself with one line, `using facts = keel::optimizer::is<keel::optimizer::closure>;`, and for a
// type that is not one's own there is keel::facts_of.
// Left out: learning rates and betas, which are the optimizer's own options.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::optimizer {

struct settings {
  bool closure = false;
  bool unscales = false;
  bool whole_tensors = false;
  bool device_only = false;
  bool state_on_host = false;
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

/// What either of two sources says.
constexpr settings operator|(settings a, settings const& b) {
  a.closure |= b.closure;
  a.unscales |= b.unscales;
  a.whole_tensors |= b.whole_tensors;
  a.device_only |= b.device_only;
  a.state_on_host |= b.state_on_host;
  return a;
}

template <class Fact>
concept fact = option_of<Fact, settings>;

struct closure {
  static constexpr void apply(settings& to) { to.closure = true; }
};
struct unscales {
  static constexpr void apply(settings& to) { to.unscales = true; }
};
struct whole_tensors {
  static constexpr void apply(settings& to) { to.whole_tensors = true; }
};
struct device_only {
  static constexpr void apply(settings& to) { to.device_only = true; }
};
struct state_on_host {
  static constexpr void apply(settings& to) { to.state_on_host = true; }
};

template <fact... Facts>
struct is : fills<slot::optimizer> {
  static constexpr settings configured = with_options<settings, Facts...>({});
};
using usual = is<>;

}  // namespace keel::optimizer

namespace keel {
template <>
struct settings_of<slot::optimizer> {
  using type = optimizer::settings;
};
template <>
struct default_policy<slot::optimizer> {
  using type = optimizer::usual;
};
}  // namespace keel
