// Which values of a tensor are not finite.
#pragma once

#include <ATen/core/Tensor.h>

namespace keel {

struct nonfinite_values {
  bool nan = false;
  bool positive = false;  ///< infinity; of complex numbers an infinity of either sign
  bool negative = false;

  bool any() const { return nan || positive || negative; }
  char const* words() const { return nan ? "nan" : positive ? "inf" : "-inf"; }
};

/// None in a tensor that is undefined, empty, sparse or not of floating-point numbers. Of a tensor on a device the host waits.
nonfinite_values nonfinite_values_of(at::Tensor const& tensor);

}  // namespace keel

#if !__has_include(<keel_bodies_are_compiled>)
#include <keel/nonfinite/nonfinite_values.ipp>
#endif
