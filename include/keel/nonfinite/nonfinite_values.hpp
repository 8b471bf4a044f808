// Which values of a tensor are not finite.
#pragma once

#include <ATen/core/Tensor.h>
#include <keel/libtorch/mode.hpp>

namespace keel::inline KEEL_MODE {

struct nonfinite_values {
  bool nan = false;
  bool positive = false;  ///< infinity; of complex numbers an infinity of either sign
  bool negative = false;

  bool any() const { return nan || positive || negative; }
  char const* words() const { return nan ? "nan" : positive ? "inf" : "-inf"; }
};

/// None in a tensor that is undefined, empty, sparse or not of floating-point numbers. Of a tensor on a device the host waits.
nonfinite_values nonfinite_values_of(at::Tensor const& tensor);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/nonfinite/nonfinite_values.ipp>
#endif
