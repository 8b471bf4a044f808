// Whether floating-point values are finite, on the calling thread alone: for a background thread that must not take the cores
// of training, as LibTorch's operators would.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <keel/libtorch/mode.hpp>

namespace keel::detail::inline KEEL_MODE {

/// NaN and infinity have every bit of the exponent set (IEEE 754; bfloat16 is the upper half of a float).
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

/// True for types that have no infinity. `count` is in bytes, a multiple of an element's.
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
