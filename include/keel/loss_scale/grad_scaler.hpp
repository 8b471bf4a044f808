// The loss scale, usable in any LibTorch program. The algorithm of the field's GradScaler (Micikevicius et al. 2018): grow
// after a stretch of finite updates, back off after an overflow; and what that one lacks, a floor with an end, and hysteresis,
// which bears a few overflows before it backs off and counts from zero when the scale grows.
//     keel::grad_scaler scaler;                        dynamic, from 65536
//     scaler.scale(loss).backward();
//     .. divide the gradients by scaler.factor(), see whether they are finite ..
//     scaler.update(overflowed);
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <keel/config/open_numbers.hpp>
#include <keel/core/error.hpp>
#include <keel/core/finite.hpp>
#include <keel/policy/loss_scale.hpp>
#include <limits>
#include <string>

namespace keel::inline KEEL_MODE {

/// The loss scale of a loop of your own. Each rank may have one where all ranks give update() the same answer.
class grad_scaler {
 public:
  /// keel::grad_scaler scaler{keel::loss_scale::fixed<1024.0>{}};
  template <policy_for<slot::loss_scale> Policy>
  explicit grad_scaler(Policy const&) : grad_scaler(detail::closed_settings<Policy>()) {}
  /// With settings as a value, as of a recipe; dynamic from 65536 unless they say otherwise.
  explicit grad_scaler(loss_scale::settings const& settings = loss_scale::dynamic<>::configured)
      : settings_(settings),
        factor_(settings.kind == loss_scale::kind::none ? 1.0 : settings.initial),
        overflows_left_(settings.hysteresis) {}

  /// By which scale() multiplies, and gradients are to be divided.
  double factor() const { return factor_; }
  /// In a row, since the scale last changed or an update overflowed.
  std::int64_t finite_updates() const { return finite_updates_; }
  /// Before the scale backs off.
  std::int64_t overflows_left() const { return overflows_left_; }

  /// One more overflow could not lower the scale: it is the model that diverges.
  bool is_at_floor() const {
    bool const ends = settings_.kind == loss_scale::kind::dynamic && settings_.raise_at_floor;
    return ends && factor_ <= settings_.floor && overflows_left_ <= 1;
  }
  /// An overflow at the floor that another policy handles: the scale stays.
  void hold_at_floor() {
    finite_updates_ = 0;
    overflows_left_ = 0;
  }

  /// The loss times the factor; the loss itself where the factor is 1.
  at::Tensor scale(at::Tensor const& loss) const { return factor_ == 1.0 ? loss : loss * factor_; }

  /// Once an attempted update. Throws nonfinite_error (E10) on an overflow at the floor, if the settings say so.
  void update(bool overflowed) {
    if (settings_.kind != loss_scale::kind::dynamic) return;
    if (overflowed) {
      finite_updates_ = 0;
      if (--overflows_left_ > 0) return;
      overflows_left_ = 0;
      if (settings_.raise_at_floor && factor_ <= settings_.floor) {
        throw nonfinite_error("E10",
                              "gradients overflow at the lowest loss scale, " + std::to_string(factor_) +
                                  ": the model itself diverges. Lower the learning rate, or use keel::precision::bf16.",
                              reason::scale_overflow);
      }
      factor_ = std::max(factor_ * settings_.backoff, settings_.floor);
    } else if (++finite_updates_ >= settings_.growth_interval) {
      finite_updates_ = 0;
      overflows_left_ = settings_.hysteresis;
      double const grown = factor_ * settings_.growth;
      if (grown <= static_cast<double>(std::numeric_limits<float>::max())) factor_ = grown;
    }
  }

  template <class Archive>
  void visit(Archive& archive) {
    archive("factor", factor_);
    archive("finite_updates", finite_updates_);
    archive("overflows_left", overflows_left_);
  }

 private:
  loss_scale::settings settings_;
  double factor_;
  std::int64_t finite_updates_ = 0;
  std::int64_t overflows_left_;
};

}  // namespace keel::inline KEEL_MODE
