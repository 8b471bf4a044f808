// The bodies of buffers.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>

#include <cstring>
#include <keel/core/buffers.hpp>

#include <keel/core/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {
/// True where a small buffer may be copied as its bytes: an operation of LibTorch takes many times as long, and a model has hundreds.
KEEL_BODY bool are_plain_bytes(at::Tensor const& live, at::Tensor const& copy) {
  constexpr std::size_t small = std::size_t{1} << 17;
  bool const is_plain =
      live.device().is_cpu() && live.layout() == at::kStrided && !live.is_quantized() && !live.is_conj() && !live.is_neg();
  return is_plain && live.numel() > 0 && live.nbytes() <= small && live.is_contiguous() && copy.is_contiguous();
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

KEEL_BODY void buffer_snapshot::restore() {
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    if (fits(i)) {
      live_[i].copy_(copies_[i]);
    } else {
      // Into the module's own handle; the next take() makes another copy.
      live_[i].set_data(std::exchange(copies_[i], at::Tensor()));
    }
  }
}

}  // namespace keel::inline KEEL_MODE

#include <keel/core/detail/body_end.inc>
