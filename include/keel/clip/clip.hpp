// The mechanisms of keel::clip. Gradients must be unscaled and finite.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <keel/config/open_numbers.hpp>
#include <keel/core/error.hpp>
#include <keel/core/window_statistics.hpp>
#include <keel/gradients/gradient_memory.hpp>
#include <keel/gradients/gradient_norm.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/policy/clip.hpp>
#include <keel/policy/state.hpp>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace keel::inline KEEL_MODE {

/// A user-defined clip policy: `static void clip(std::span<at::Tensor const> gradients, double norm)`, optionally with a state
/// as third argument.
template <class Policy>
concept custom_clip = requires(std::span<at::Tensor const> gradients, double norm) { Policy::clip(gradients, norm); };
/// A user-defined clip policy that keeps a state.
template <class Policy>
concept custom_stateful_clip =
    stateful<Policy> && requires(std::span<at::Tensor const> gradients, double norm, typename Policy::state& state) {
      Policy::clip(gradients, norm, state);
    };

/// Base class for the state of built-in policies that learn their limit from the norms of applied updates. The state has
/// `double limit() const`, the largest norm allowed for the next update, and `void accepted(step_outcome const&)`.
struct clip_history {};

/// The state of clip::zscore: the norms of recent applied updates. Clipped updates enter the history at their clipped norm, so
/// an outlier cannot raise the next limit.
class norm_history : public clip_history {
 public:
  explicit norm_history(clip::settings const& settings)
      : settings_(settings), norms_(length(), std::max<std::size_t>(2, length() / 4)) {}

  /// Returns the largest norm allowed for the next update. Returns infinity if neither the history nor at_most bounds it.
  double limit() const {
    double const bound = settings_.at_most > 0.0 ? settings_.at_most : std::numeric_limits<double>::infinity();
    return std::min(bound, norms_.limit(settings_.limit));
  }
  /// Records the norm of an applied update, clipped to the current limit.
  void accepted(step_outcome const& result) {
    norms_.push(keel::accepted(result, std::min(result.get<result::updated>().gradient_norm, limit())));
  }

  template <class Archive>
  void visit(Archive& archive) {
    archive("norms", norms_);
  }

 private:
  std::size_t length() const { return static_cast<std::size_t>(std::max(2LL, settings_.window)); }

  clip::settings settings_;
  window_statistics norms_;
};

struct no_state {
  template <class Archive>
  void visit(Archive& /*archive*/) {}
};
}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {
template <class Policy>
struct state_type {
  using type = no_state;
};
template <stateful Policy>
struct state_type<Policy> {
  using type = typename Policy::state;
};
template <class Policy>
  requires(!stateful<Policy> && Policy::configured.kind == clip::kind::zscore)
struct state_type<Policy> {
  struct type : norm_history {
    type() : norm_history(closed_settings<Policy>()) {}
    explicit type(clip::settings const& settings) : norm_history(settings) {}
  };
};
}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {
/// The state type of a clip policy; an empty type for stateless policies.
template <class Policy>
using state_of = typename detail::state_type<Policy>::type;

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {
template <class Policy>
state_of<Policy> begin_clip_state(clip::settings const& settings) {
  if constexpr (std::is_constructible_v<state_of<Policy>, clip::settings const&>) {
    return state_of<Policy>(settings);
  } else {
    return {};
  }
}
}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Returns true if the policy bounds a joint norm of an order other than 2, which needs the materialized gradients.
constexpr bool has_other_order(clip::settings const& settings) {
  return settings.kind == clip::kind::global_norm && settings.order != 2.0;
}

/// Returns true if the policy bounds anything but the joint L2 norm. Gradients are then unscaled in memory first.
constexpr bool needs_materialized_gradients(clip::settings const& settings) {
  return settings.kind == clip::kind::value || settings.kind == clip::kind::adaptive || settings.kind == clip::kind::custom ||
         has_other_order(settings);
}

/// Returns the largest joint L2 norm that the policy allows, or infinity if it bounds something else.
template <class Policy>
double norm_limit(state_of<Policy> const& state, clip::settings const& settings = detail::closed_settings<Policy>()) {
  if constexpr (std::derived_from<state_of<Policy>, clip_history>) {
    return state.limit();
  } else {
    bool const is_norm = settings.kind == clip::kind::global_norm && !has_other_order(settings);
    return is_norm ? settings.limit : std::numeric_limits<double>::infinity();
  }
}

/// Scales all gradients by limit / norm if their joint norm exceeds the limit.
inline void clip_global_norm(std::span<at::Tensor const> gradients, double norm, double limit) {
  if (!(norm > limit)) return;
  std::vector<at::Tensor> defined;
  for (at::Tensor const& gradient : gradients) {
    if (gradient.defined()) defined.push_back(gradient);
  }
  if (!defined.empty()) at::_foreach_mul_(defined, limit / norm);
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Returns whether any of the bool scalars is true. The flags may be on several devices; the host reads one number.
inline bool any_of(std::vector<at::Tensor> flags) {
  if (flags.empty()) return false;
  for (at::Tensor& flag : flags) flag = flag.to(flags.front().device());
  return host_value(at::stack(flags).any()) != 0.0;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Clamps every element to [-limit, limit]. Returns whether any element was outside.
inline bool clip_value(std::span<at::Tensor const> gradients, double limit) {
  std::vector<at::Tensor> outside;
  for (at::Tensor const& gradient : gradients) {
    if (!gradient.defined() || gradient.numel() == 0) continue;
    outside.push_back(gradient.abs().max().gt(limit));
    gradient.clamp_(-limit, limit);
  }
  return detail::any_of(outside);
}

/// Adaptive gradient clipping (Brock et al. 2021). Scales the gradient of each unit to at most `ratio` times the norm of the
/// unit's weights, floored at `least`. A unit is a row of a matrix, a filter of a convolution, or a whole vector.
/// Returns whether any gradient was scaled.
inline bool clip_unit_wise(std::span<at::Tensor const> parameters, std::span<at::Tensor const> gradients, double ratio,
                           double least = 1e-3) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> outside;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    at::Tensor const& gradient = gradients[i];
    if (!gradient.defined() || gradient.numel() == 0) continue;
    auto const norms_of = [&](at::Tensor const& tensor) {
      std::vector<std::int64_t> within;
      for (std::int64_t dimension = tensor.dim() > 1 ? 1 : 0; dimension < tensor.dim(); ++dimension)
        within.push_back(dimension);
      // In double, so that the norm of a finite fp32 gradient cannot overflow.
      at::Tensor const wide = tensor.to(at::kDouble);
      return within.empty() ? wide.abs() : at::linalg_vector_norm(wide, 2, within, /*keepdim=*/true);
    };
    at::Tensor const limit = norms_of(parameters[i].detach()).clamp_min(least).mul_(ratio);
    at::Tensor const norm = norms_of(gradient);
    outside.push_back(norm.gt(limit).any());
    gradient.mul_(at::where(norm.gt(limit), limit.div(norm), at::ones_like(norm)).to(gradient.scalar_type()));
  }
  return detail::any_of(outside);
}

/// Applies a built-in policy that needs the materialized gradients. Returns whether it changed any.
inline bool clip_whole(std::span<at::Tensor const> parameters, std::span<at::Tensor const> gradients,
                       clip::settings const& settings) {
  at::NoGradGuard no_grad;
  if (settings.kind == clip::kind::value) return clip_value(gradients, settings.limit);
  if (settings.kind == clip::kind::adaptive) return clip_unit_wise(parameters, gradients, settings.limit);
  if (!has_other_order(settings)) return false;
  double const measured = joint_norm(gradients, settings.order);
  std::vector<at::Tensor> values(gradients.begin(), gradients.end());
  for (at::Tensor& gradient : values) {
    if (gradient.defined() && gradient.is_sparse()) gradient = gradient._values();
  }
  clip_global_norm(values, measured, settings.limit);
  return measured > settings.limit;
}

/// Applies a policy that is user-defined or needs the materialized gradients. `norm` is the joint L2 norm of the gradients.
/// Returns whether any gradient changed; always true for a user-defined policy.
template <class Policy>
bool apply_clip(std::span<at::Tensor const> parameters, std::span<at::Tensor const> gradients, double norm,
                state_of<Policy>& state, clip::settings const& settings = detail::closed_settings<Policy>()) {
  at::NoGradGuard no_grad;
  if constexpr (custom_stateful_clip<Policy>) {
    Policy::clip(gradients, norm, state);
    return true;
  } else if constexpr (custom_clip<Policy>) {
    Policy::clip(gradients, norm);
    return true;
  } else {
    return clip_whole(parameters, gradients, settings);
  }
}

/// Clips gradients to a joint norm in place and returns the norm before clipping. For any LibTorch program. `norm_type` is at
/// least 1 and may be infinity. Unlike the function of this name in LibTorch, leaves the gradients unchanged if the norm is not
/// finite, so that the caller can find the cause.
/// Throws nonfinite_error (E08) for a norm that is not finite if `error_if_nonfinite` is true. Throws error (E12) for a
/// `max_norm` below 0 or NaN, and for a `norm_type` below 1.
/// Not collective: uses this rank's gradients only. Sum or average them over the ranks first.
inline double clip_grad_norm_(std::span<at::Tensor const> parameters, double max_norm, double norm_type = 2.0,
                              bool error_if_nonfinite = false) {
  if (!(norm_type >= 1.0)) {
    throw error("E12", c10::str("clip_grad_norm_ was called with a norm_type of ", norm_type,
                                ", and a norm has an order of at least 1. Use 2, 1 or infinity."));
  }
  if (!(max_norm >= 0.0)) {
    throw error("E12", c10::str("clip_grad_norm_ was called with a max_norm of ", max_norm,
                                ", which is not a bound. Use a number from 0 on, or infinity to measure and not clip."));
  }
  separate_gradients(parameters);
  std::vector<at::Tensor> gradients;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].grad().defined()) continue;
    gradients.push_back(parameters[i].grad());
    places.push_back(i);
  }
  double const norm = joint_norm(gradients, norm_type);
  if (std::isfinite(norm)) {
    at::NoGradGuard no_grad;
    for (at::Tensor& gradient : gradients) {
      if (gradient.is_sparse()) gradient = gradient._values();
    }
    clip_global_norm(gradients, norm, max_norm);
  } else if (error_if_nonfinite) {
    std::string what = "the joint norm of the gradients overflows, although each of them is finite";
    if (auto const first = measure_gradients(gradients).first_nonfinite; first >= 0) {
      std::size_t const place = places[static_cast<std::size_t>(first)];
      what = c10::str("the gradient of parameter ", place, " of ", parameters.size(), ", of shape ", parameters[place].sizes(),
                      ", is not finite");
    }
    throw nonfinite_error("E08", what +
                                     ". No gradient was clipped. Skip this update and look at its batch, or call it "
                                     "without error_if_nonfinite and check the norm that it returns.");
  }
  return norm;
}
/// As above, for one parameter.
inline double clip_grad_norm_(at::Tensor const& parameter, double max_norm, double norm_type = 2.0,
                              bool error_if_nonfinite = false) {
  return clip_grad_norm_(std::span<at::Tensor const>(&parameter, 1), max_norm, norm_type, error_if_nonfinite);
}

}  // namespace keel::inline KEEL_MODE
