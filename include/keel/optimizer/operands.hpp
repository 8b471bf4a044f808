// What the inner loops of the update engines work on.
#pragma once

#include <c10/core/ScalarType.h>

#include <keel/optimizer/chunks.hpp>

namespace keel::detail::inline KEEL_MODE {

/// Coefficients of one Adam update of one parameter group; computed in double, applied in float.
struct adam_coefficients {
  float factor;         ///< on the gradient
  float coupled_decay;  ///< weight decay that is added to the gradient; 0: none
  float keep;           ///< on the parameter: 1 - lr * decoupled weight decay
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float inverse_root_correction2;  ///< 1 / sqrt(1 - beta2^step)
  float eps;
  float step_size;  ///< lr / (1 - beta1^step)
};

/// Of one SGD update.
struct sgd_coefficients {
  float factor;
  float weight_decay;
  float momentum;
  float one_minus_dampening;
  float lr;
  bool nesterov;
};

/// A parameter and its gradient in memory. The gradient is of the parameter's type or, where it was summed in it, fp32.
struct operands {
  at::ScalarType type;  ///< of the parameter
  at::ScalarType gradient_type;
  float* worked;  ///< the parameter if it is fp32, or else its copy in fp32
  void const* gradient;
  void* narrow_parameter;  ///< null for an fp32 parameter

  /// Calls `kernel(worked, gradient, begin, count)` with fp32 for all elements of the piece, and rounds what it left in
  /// `worked` into a narrow parameter.
  template <class Kernel>
  void run(chunk const& piece, Kernel const& kernel) const;

 private:
  template <class Narrow, class Kernel>
  void run_narrow(chunk const& piece, Kernel const& kernel) const;
};

}  // namespace keel::detail::inline KEEL_MODE
