// precision: the number format of the forward and backward pass. Parameters, gradients and optimizer state stay fp32.
//   fp32   the default, and the reference to compare with when a run misbehaves.
//   bf16   autocast to bfloat16: the range of fp32 with about a third of its digits; needs no loss scale. Recommended.
//   fp16   autocast to half: more digits, smaller range; needs keel::loss_scale::dynamic (P01) and kernels that CPUs lack (P14).
// Left out: bf16 or fp16 master parameters (a relative update of 1e-4 is lost in eight bits of precision), fp8 (LibTorch's C++ interface
// has no kernels for it).
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct precision;
}

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

struct slot::precision : slot_description {
  using settings = keel::precision::settings;
  using default_policy = keel::precision::fp32;
  static constexpr char const* name = "precision";
  static constexpr char const* given_twice = "P03";
  static constexpr policy_list<settings, 3> policies() {
    return {{{"fp32", {keel::precision::kind::fp32}},
             {"bf16", {keel::precision::kind::bf16}},
             {"fp16", {keel::precision::kind::fp16}}}};
  }
};

}  // namespace keel
