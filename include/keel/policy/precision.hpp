// precision: the number format of the forward and backward pass. Parameters, gradients and optimizer state stay fp32.
//   fp32   the default, and the reference to compare with when a run misbehaves.
//   bf16   autocast to bfloat16: the range of fp32, a third of its digits; needs no loss scale. The one to use.
//   fp16   autocast to half: more digits, small range; needs keel::loss_scale::dynamic (P01) and kernels that CPUs lack (P14).
// Left out: bf16 or fp16 master parameters (an update of 1e-4 relative is lost in eight bits), fp8 (no kernels in
// LibTorch's C++ interface).
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::precision {

enum class kind : unsigned char { fp32, bf16, fp16 };

struct settings {
  precision::kind kind = kind::fp32;
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

struct fp32 : fills<slot::precision> {
  static constexpr settings configured{kind::fp32};
};
struct bf16 : fills<slot::precision> {
  static constexpr settings configured{kind::bf16};
};
struct fp16 : fills<slot::precision> {
  static constexpr settings configured{kind::fp16};
};

}  // namespace keel::precision

namespace keel {
template <>
struct settings_of<slot::precision> {
  using type = precision::settings;
};
template <>
struct default_policy<slot::precision> {
  using type = precision::fp32;
};
}  // namespace keel
