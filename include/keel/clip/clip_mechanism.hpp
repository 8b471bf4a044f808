// The interface through which an update calls a clip policy, built-in or user-defined.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <concepts>
#include <keel/checkpoint/archive.hpp>
#include <keel/clip/clip.hpp>
#include <keel/core/outcome.hpp>
#include <keel/policy/clip.hpp>
#include <memory>
#include <span>
#include <utility>

namespace keel::inline KEEL_MODE {

/// A clip policy and its state. Changes that clip() makes to the state take effect with commit(), once the update is applied.
class clip_mechanism {
 public:
  clip_mechanism() = default;
  clip_mechanism(clip_mechanism const&) = delete;
  clip_mechanism& operator=(clip_mechanism const&) = delete;
  virtual ~clip_mechanism() = default;

  /// Returns the largest joint L2 norm allowed; infinity for a policy that bounds something else.
  virtual double norm_limit(clip::settings const& settings) const = 0;
  /// Clips unscaled gradients with a policy that needs the materialized gradients. Returns whether any changed. `norm`: their joint L2
  /// norm.
  virtual bool clip(std::span<at::Tensor const> parameters, std::span<at::Tensor const> gradients, double norm,
                    clip::settings const& settings) = 0;
  virtual void commit() = 0;
  /// Call after an update was applied.
  virtual void accepted(step_outcome const& result) = 0;
  virtual void visit(state_writer& archive) = 0;
  virtual void visit(state_reader& archive) = 0;
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

template <class Policy>
class clip_mechanism_of final : public clip_mechanism {
 public:
  explicit clip_mechanism_of(clip::settings const& settings) : state_(begin_clip_state<Policy>(settings)), next_(state_) {}
  double norm_limit(clip::settings const& settings) const override { return keel::norm_limit<Policy>(state_, settings); }
  bool clip(std::span<at::Tensor const> parameters, std::span<at::Tensor const> gradients, double norm,
            clip::settings const& settings) override {
    next_ = state_;
    return apply_clip<Policy>(parameters, gradients, norm, next_, settings);
  }
  void commit() override { state_ = next_; }
  void accepted(step_outcome const& result) override {
    if constexpr (std::derived_from<state_of<Policy>, clip_history>) {
      state_.accepted(result);
      next_ = state_;
    }
  }
  void visit(state_writer& archive) override { state_.visit(archive); }
  void visit(state_reader& archive) override {
    state_.visit(archive);
    next_ = state_;
  }

 private:
  state_of<Policy> state_;
  state_of<Policy> next_;
};

/// Stateless built-in policies share one type, because they differ only in their settings.
template <class Policy>
std::unique_ptr<clip_mechanism> make_clip_mechanism(clip::settings const& settings) {
  if constexpr (Policy::configured.kind == clip::kind::custom || std::derived_from<state_of<Policy>, clip_history>) {
    return std::make_unique<clip_mechanism_of<Policy>>(settings);
  } else {
    return std::make_unique<clip_mechanism_of<clip::none>>(settings);
  }
}

}  // namespace keel::detail::inline KEEL_MODE
