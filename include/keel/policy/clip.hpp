// clip: bounds the gradient of an update, after it was unscaled and found finite, and never before (G01, G08).
//   none               the default.
//   global_norm<M>     scales all gradients by M / norm if their joint L2 norm exceeds M (Pascanu et al. 2013). The usual one.
//                      With order<1>, order<infinity> or any order from 1 on it is that norm that M bounds; the norm that a
//                      step reports, and that spikes are judged by, stays L2.
//   value<M>           clamps every element to [-M, M]; changes the direction, so only where a paper asks for it.
//   adaptive<R>        bounds each unit's gradient, a row of a matrix or a filter, to R times the norm of its weights (Brock et
//                      al. 2021, "NFNets"). Leave the last layer's weights to a custom policy.
//   zscore<Z,..>       scales all gradients to mean + Z deviations of the recent norms if theirs stands above it: a limit that
//                      follows the run (Kumar et al. 2025, "ZClip"). Options: window<N>, at_most<M>, a bound that holds from
//                      the first update on. A deviation counts as at least a hundredth of the mean.
// Left out: orders below 1, which are not norms (G15), other orders than 2 over shards of gradients (G06), and clipping of every micro-batch
// (G02).
#pragma once

#include <keel/policy/name.hpp>
#include <keel/policy/number.hpp>
#include <keel/policy/slot.hpp>
#include <limits>

namespace keel::slot {
struct clip;
}

namespace keel::clip {

/// The order of the maximum norm: clip::order<clip::infinity>.
inline constexpr double infinity = std::numeric_limits<double>::infinity();

enum class kind : unsigned char { none, global_norm, value, adaptive, zscore, custom };

struct settings {
  clip::kind kind = kind::none;
  double limit = 0.0;  ///< largest norm, element, ratio or number of deviations, by kind
  /// A custom policy that decides from the joint norm alone, which all ranks share, and never from elements (G03).
  bool by_joint_norm = false;
  long long window = 0;  ///< of zscore: applied updates that it looks back on
  double at_most = 0.0;  ///< of zscore: largest norm, also before there is a history; 0: none
  double order = 2.0;    ///< of global_norm: the p of the p-norm that is bounded
  short_name own{};      ///< of a custom policy its name, which a recipe fills in
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <class Option>
concept option = option_of<Option, settings>;

template <long long Updates>
struct window : sets<&settings::window, Updates> {};
template <number MaxNorm>
struct at_most : sets<&settings::at_most, MaxNorm> {};
/// A number from 1 on, or infinity.
template <number P>
struct order : sets<&settings::order, P> {};

struct none : fills<slot::clip> {
  static constexpr settings configured{};
};
template <number MaxNorm, option... Options>
struct global_norm : configures<slot::clip, settings{kind::global_norm, MaxNorm}, Options...> {};
template <number MaxElement>
struct value : fills<slot::clip> {
  static constexpr settings configured{kind::value, MaxElement};
};
template <number Ratio>
struct adaptive : fills<slot::clip> {
  static constexpr settings configured{kind::adaptive, Ratio};
};

constexpr settings zscore_start(double deviations) { return {.kind = kind::zscore, .limit = deviations, .window = 128}; }
template <number Deviations, option... Options>
struct zscore : configures<slot::clip, zscore_start(Deviations), Options...> {};

}  // namespace keel::clip

namespace keel {

struct slot::clip : slot_description {
  using settings = keel::clip::settings;
  using default_policy = keel::clip::none;
  static constexpr char const* name = "clip";
  static constexpr char const* given_twice = "G07";
  static constexpr policy_list<settings, 6> policies() {
    return {{{"none", {}},
             {"global_norm", {keel::clip::kind::global_norm}, " limit order ", "limit", true},
             {"value", {keel::clip::kind::value}, " limit ", "limit", true},
             {"adaptive", {keel::clip::kind::adaptive}, " limit ", "limit", true},
             {"zscore", keel::clip::zscore_start(0.0), " limit window at_most ", "limit", true},
             {"custom", {keel::clip::kind::custom}, "*"}}};
  }
  static constexpr void fields(auto& s, auto& field) {
    field.number("limit", s.limit);
    field.updates("window", s.window);
    field.number("at_most", s.at_most);
    field.number_or_infinity("order", s.order);
    field.truth("by_joint_norm", s.by_joint_norm);
    field.name("name", s.own.letters);
  }
};

}  // namespace keel
