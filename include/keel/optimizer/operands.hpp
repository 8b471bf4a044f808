// Operands of the update engines' inner loops.
#pragma once

#include <c10/core/ScalarType.h>

#include <keel/optimizer/chunks.hpp>

namespace keel::detail::inline KEEL_MODE {

/// Coefficients of one Adam update of one parameter group; computed in double, applied in float.
struct adam_coefficients {
  float factor;         ///< multiplies the gradient
  float coupled_decay;  ///< weight decay added to the gradient; 0: none
  float keep;           ///< multiplies the parameter: 1 - lr * decoupled weight decay
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float inverse_root_correction2;  ///< 1 / sqrt(1 - beta2^step)
  float eps;
  float step_size;  ///< lr / (1 - beta1^step)
};

/// Coefficients of one SGD update.
struct sgd_coefficients {
  float factor;
  float weight_decay;
  float momentum;
  float one_minus_dampening;
  float lr;
  bool nesterov;
};

/// A parameter and its gradient in memory. The gradient has the parameter's type, or fp32 if it was summed in fp32.
struct operands {
  at::ScalarType type;  ///< type of the parameter
  at::ScalarType gradient_type;
  float* worked;  ///< the parameter if it is fp32, else its fp32 copy
  void const* gradient;
  void* narrow_parameter;  ///< null for an fp32 parameter

  /// Calls `kernel(worked, gradient, begin, count)` with fp32 data for all elements of the piece, and rounds the resulting
  /// `worked` into a narrow parameter.
  template <class Kernel>
  void run(chunk const& piece, Kernel const& kernel) const;

 private:
  template <class Narrow, class Kernel>
  void run_narrow(chunk const& piece, Kernel const& kernel) const;
};

}  // namespace keel::detail::inline KEEL_MODE
