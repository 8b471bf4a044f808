// Checks whether floating-point values are finite, on the calling thread only: for background threads, which must not take cores away from
// training as LibTorch's operators would.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <keel/libtorch/mode.hpp>

namespace keel::detail::inline KEEL_MODE {

/// In NaN and infinity every bit of the exponent is set (IEEE 754; bfloat16 is the upper half of a float).
template <class Bits>
bool exponents_are_finite(char const* bytes, std::size_t count, Bits exponent) {
  bool found = false;
  for (std::size_t at = 0; at < count; at += sizeof(Bits)) {
    Bits value;
    std::memcpy(&value, bytes + at, sizeof value);
    found |= (value & exponent) == exponent;
  }
  return !found;
}

/// Returns true if all values are finite, and for types without an infinity. `count` is in bytes, a multiple of the element size.
inline bool is_finite(char const* bytes, std::size_t count, at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kComplexFloat:
      return exponents_are_finite<std::uint32_t>(bytes, count, 0x7f800000u);
    case at::kDouble:
      return exponents_are_finite<std::uint64_t>(bytes, count, 0x7ff0000000000000u);
    case at::kHalf:
      return exponents_are_finite<std::uint16_t>(bytes, count, 0x7c00u);
    case at::kBFloat16:
      return exponents_are_finite<std::uint16_t>(bytes, count, 0x7f80u);
    default:
      return true;
  }
}

}  // namespace keel::detail::inline KEEL_MODE
