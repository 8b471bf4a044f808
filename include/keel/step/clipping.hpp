// The mechanisms of keel::clip, on gradients that are unscaled and known to be finite.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_mul.h>

#include <cstdint>
#include <keel/policy/clip.hpp>
#include <keel/policy/state.hpp>
#include <keel/step/gradient_norm.hpp>
#include <span>
#include <vector>

namespace keel {

/// A clip policy of one's own: `static void clip(std::span<at::Tensor const> gradients, double norm)`, or with its state as a
/// third argument.
template <class Policy>
concept custom_clip = requires(std::span<at::Tensor const> gradients, double norm) {
  Policy::clip(gradients, norm);
};
template <class Policy>
concept custom_stateful_clip = stateful<Policy> &&
    requires(std::span<at::Tensor const> gradients, double norm, typename Policy::state& state) {
  Policy::clip(gradients, norm, state);
};

struct no_state {
  template <class Archive>
  void visit(Archive& /*archive*/) {}
};
namespace detail {
template <class Policy>
struct state_type {
  using type = no_state;
};
template <stateful Policy>
struct state_type<Policy> {
  using type = typename Policy::state;
};
}  // namespace detail
/// The state that a policy keeps; empty for most.
template <class Policy>
using state_of = typename detail::state_type<Policy>::type;

/// Scales all gradients by limit / norm if their joint norm exceeds the limit.
inline void clip_global_norm(std::span<at::Tensor const> gradients, double norm, double limit) {
  if (!(norm > limit)) return;
  std::vector<at::Tensor> defined;
  for (at::Tensor const& gradient : gradients) {
    if (gradient.defined()) defined.push_back(gradient);
  }
  if (!defined.empty()) at::_foreach_mul_(defined, limit / norm);
}

inline void clip_value(std::span<at::Tensor const> gradients, double limit) {
  for (at::Tensor const& gradient : gradients) {
    if (gradient.defined()) gradient.clamp_(-limit, limit);
  }
}

/// Applies a clip policy; `norm` is the joint L2 norm of the gradients.
template <class Policy>
void apply_clip(std::span<at::Tensor const> gradients, double norm, state_of<Policy>& state) {
  at::NoGradGuard no_grad;
  constexpr auto settings = Policy::configured;
  if constexpr (custom_stateful_clip<Policy>) {
    Policy::clip(gradients, norm, state);
  } else if constexpr (custom_clip<Policy>) {
    Policy::clip(gradients, norm);
  } else if constexpr (settings.kind == clip::kind::global_norm) {
    clip_global_norm(gradients, norm, settings.limit);
  } else if constexpr (settings.kind == clip::kind::value) {
    clip_value(gradients, settings.limit);
  }
}

/// For any LibTorch program: clips the parameters' gradients to a joint L2 norm and returns the norm before. Unlike the
/// library's own, it leaves the gradients alone where the norm is not finite, so that the caller can still tell which one it
/// was.
inline double clip_grad_norm_(std::span<at::Tensor const> parameters, double max_norm) {
  std::vector<at::Tensor> gradients;
  for (at::Tensor const& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  double const norm = measure_gradients(gradients).norm;
  if (std::isfinite(norm)) {
    at::NoGradGuard no_grad;
    clip_global_norm(gradients, norm, max_norm);
  }
  return norm;
}

}  // namespace keel
