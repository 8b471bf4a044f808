// optimizer: facts about the optimizer that rules need. It declares facts and does nothing itself; the trainer adds the known facts of the
// optimizer's type.
//   usual        the default: element-wise, one pass, no internal scaler; LibTorch's Adam, AdamW, SGD, RMSprop, Adagrad.
//   is<Facts..>  closure (evaluates the loss inside its step, like LBFGS), unscales (divides by the loss scale itself), whole_tensors (an
//                update needs whole parameters: LAMB, Muon, Shampoo), device_only (its kernels do not support host memory), state_on_host
//                (keeps its moments in host memory itself).
// An optimizer type declares its facts in one line, `using facts = keel::optimizer::is<keel::optimizer::closure>;`. For a type of another
// library, specialize keel::facts_of.
// Left out: learning rates and betas, which are the optimizer's own options.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct optimizer;
}

namespace keel::optimizer {

struct settings {
  bool closure = false;        ///< evaluates the loss inside its step, like LBFGS
  bool unscales = false;       ///< divides by the loss scale itself
  bool whole_tensors = false;  ///< an update needs whole parameters: LAMB, Muon, Shampoo
  bool device_only = false;    ///< its kernels do not support host memory
  bool state_on_host = false;  ///< keeps its moments in host memory itself
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

/// Merges the facts of two sources.
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

struct closure : sets<&settings::closure, true> {};
struct unscales : sets<&settings::unscales, true> {};
struct whole_tensors : sets<&settings::whole_tensors, true> {};
struct device_only : sets<&settings::device_only, true> {};
struct state_on_host : sets<&settings::state_on_host, true> {};

template <fact... Facts>
struct is : configures<slot::optimizer, settings{}, Facts...> {};
using usual = is<>;

}  // namespace keel::optimizer

namespace keel {

struct slot::optimizer : slot_description {
  using settings = keel::optimizer::settings;
  using default_policy = keel::optimizer::usual;
  static constexpr char const* name = "optimizer";
  static constexpr char const* given_twice = "D18";
  static constexpr bool is_single = true;
  static constexpr char const* unset = "usual";
  static constexpr char const* keep_one = "list all facts in one keel::optimizer::is<..>";
  static constexpr bool is_same_policy(settings const&, settings const&) { return true; }
  static constexpr policy_list<settings, 1> policies() { return {{{"is", {}, "*"}}}; }
  static constexpr void fields(auto& s, auto& field) {
    field.truth("closure", s.closure);
    field.truth("unscales", s.unscales);
    field.truth("whole_tensors", s.whole_tensors);
    field.truth("device_only", s.device_only);
    field.truth("state_on_host", s.state_on_host);
  }
};

}  // namespace keel
