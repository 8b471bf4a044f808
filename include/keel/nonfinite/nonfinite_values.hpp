// Finds the kinds of non-finite values in a tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <keel/libtorch/mode.hpp>

namespace keel::inline KEEL_MODE {

struct nonfinite_values {
  bool nan = false;
  bool positive = false;  ///< infinity; for complex numbers an infinity of either sign
  bool negative = false;

  bool any() const { return nan || positive || negative; }
  char const* words() const { return nan ? "nan" : positive ? "inf" : "-inf"; }
};

/// Returns none for a tensor that is undefined, empty, sparse or not floating-point. Synchronizes for a tensor on a device.
nonfinite_values nonfinite_values_of(at::Tensor const& tensor);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/nonfinite/nonfinite_values.ipp>
#endif
