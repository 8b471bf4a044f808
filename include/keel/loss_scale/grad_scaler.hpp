// Loss scaling for fp16, usable in any LibTorch program. Implements the algorithm of torch.amp.GradScaler (Micikevicius et al.
// 2018): the scale grows after an interval of finite updates and backs off after an overflow. Adds a floor at which an overflow
// is an error, and hysteresis: a number of overflows to tolerate before backing off. The count restarts when the scale grows.
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

/// The loss scale of a custom training loop. Each rank may have its own if all ranks pass the same value to update().
class grad_scaler {
 public:
  /// Constructs a scaler from a policy: keel::grad_scaler scaler{keel::loss_scale::fixed<1024.0>{}};
  template <policy_for<slot::loss_scale> Policy>
  explicit grad_scaler(Policy const&) : grad_scaler(detail::closed_settings<Policy>()) {}
  /// Constructs a scaler from settings, such as those of a recipe. The default is dynamic, from 65536.
  explicit grad_scaler(loss_scale::settings const& settings = loss_scale::dynamic<>::configured)
      : settings_(settings),
        factor_(settings.kind == loss_scale::kind::none ? 1.0 : settings.initial),
        overflows_left_(settings.hysteresis) {}

  /// Returns the factor by which scale() multiplies. Divide gradients by it.
  double factor() const { return factor_; }
  /// Returns the number of consecutive finite updates since the last overflow or growth of the scale.
  std::int64_t finite_updates() const { return finite_updates_; }
  /// Returns how many overflows remain until the scale backs off.
  std::int64_t overflows_left() const { return overflows_left_; }

  /// Returns true if the next overflow could not lower the scale: the model itself diverges.
  bool is_at_floor() const {
    bool const ends = settings_.kind == loss_scale::kind::dynamic && settings_.raise_at_floor;
    return ends && factor_ <= settings_.floor && overflows_left_ <= 1;
  }
  /// Handles an overflow at the floor without throwing, if another policy reports it. The scale is unchanged.
  void hold_at_floor() {
    finite_updates_ = 0;
    overflows_left_ = 0;
  }

  /// Returns loss * factor(), or the loss itself if the factor is 1.
  at::Tensor scale(at::Tensor const& loss) const { return factor_ == 1.0 ? loss : loss * factor_; }

  /// Call once per attempted update. Throws nonfinite_error (E10) on an overflow at the floor if the settings request it.
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
