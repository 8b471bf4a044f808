// Definitions for buffers.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <keel/core/buffers.hpp>
#include <keel/core/finite_bytes.hpp>
#include <limits>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {
/// True for small buffers that may be copied bytewise. An operation of LibTorch takes many times as long, and a model has hundreds of
/// buffers.
KEEL_BODY bool are_plain_bytes(at::Tensor const& live, at::Tensor const& copy) {
  constexpr std::size_t small = std::size_t{1} << 17;
  bool const is_plain =
      live.device().is_cpu() && live.layout() == at::kStrided && !live.is_quantized() && !live.is_conj() && !live.is_neg();
  return is_plain && live.numel() > 0 && live.nbytes() <= small && live.is_contiguous() && copy.is_contiguous();
}
/// Returns which elements became NaN or infinite. Minus infinity is excluded, because masks contain it.
KEEL_BODY at::Tensor nonfinite_elements(at::Tensor const& now, at::Tensor const& before) {
  double const infinity = std::numeric_limits<double>::infinity();
  return now.ne(now).logical_or_(now.eq(infinity)).logical_and_(at::isfinite(before));
}
}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY void buffer_snapshot::take() {
  at::NoGradGuard no_grad;
  copies_.resize(live_.size());
  for (std::size_t i = 0; i < live_.size(); ++i) {
    if (!fits(i)) {
      copies_[i] = live_[i].detach().clone();
    } else if (detail::are_plain_bytes(live_[i], copies_[i])) {
      std::memcpy(copies_[i].data_ptr(), live_[i].data_ptr(), live_[i].nbytes());
    } else {
      copies_[i].copy_(live_[i]);
    }
  }
}

KEEL_BODY void buffer_snapshot::restore_unless(at::Tensor const& kept) {
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    if (!fits(i)) {
      if (host_value(kept) == 0.0) restore();
      return;
    }
  }
  for (std::size_t i = 0; i < copies_.size(); ++i) live_[i].copy_(at::where(kept.to(live_[i].device()), live_[i], copies_[i]));
}

KEEL_BODY std::string buffer_snapshot::first_nonfinite_buffer() const {
  at::NoGradGuard no_grad;
  // Synchronizes with each device only once.
  std::vector<at::Device> looked_at;
  bool is_spoiled_there = false;
  for (at::Tensor const& live : live_) {
    if (live.is_cpu() || std::find(looked_at.begin(), looked_at.end(), live.device()) != looked_at.end()) continue;
    looked_at.push_back(live.device());
    is_spoiled_there = any_nonfinite_on_device(live.device()).item<bool>() || is_spoiled_there;
  }
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    at::Tensor const& live = live_[i];
    if (!is_judged(i) || (!live.is_cpu() && !is_spoiled_there)) continue;
    if (detail::are_plain_bytes(live, copies_[i])) {
      auto const* const bytes = static_cast<char const*>(live.data_ptr());
      bool const is_same = std::memcmp(bytes, copies_[i].data_ptr(), live.nbytes()) == 0;
      if (is_same || detail::is_finite(bytes, live.nbytes(), live.scalar_type())) continue;
    }
    if (detail::nonfinite_elements(live, copies_[i]).any().item<bool>()) return names_[i];
  }
  return "";
}

KEEL_BODY at::Tensor buffer_snapshot::any_nonfinite_on_device(at::Device device) const {
  at::NoGradGuard no_grad;
  // Concatenates all buffers of a type, because a model has hundreds of them.
  at::Tensor spoiled = at::zeros({}, at::TensorOptions(device).dtype(at::kBool));
  for (at::ScalarType const type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    std::vector<at::Tensor> live, before;
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      if (!is_judged(i) || live_[i].scalar_type() != type || live_[i].device() != device) continue;
      live.push_back(live_[i].detach().reshape({-1}));
      before.push_back(copies_[i].reshape({-1}));
    }
    if (!live.empty()) spoiled.logical_or_(detail::nonfinite_elements(at::cat(live), at::cat(before)).any());
  }
  return spoiled;
}

KEEL_BODY void buffer_snapshot::restore() {
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    if (fits(i)) {
      live_[i].copy_(copies_[i]);
    } else {
      // Moves the copy into the module's own handle; the next take() makes another copy.
      live_[i].set_data(std::exchange(copies_[i], at::Tensor()));
    }
  }
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
