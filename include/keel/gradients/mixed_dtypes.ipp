// Definitions for mixed_dtypes.hpp.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/gradients/mixed_dtypes.hpp>
#include <optional>
#include <string>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void rethrow_mixed_dtypes(c10::Error const& thrown, std::optional<at::ScalarType> found, at::ScalarType parameters) {
  std::string const words = first_line(thrown);
  bool const is_about_dtypes = words.find("dtype") != std::string::npos || words.find("scalar type") != std::string::npos;
  if (!is_about_dtypes || !found) throw;
  throw data_error("E07", std::string("the batch is of ") + c10::toString(*found) + " and the model of " +
                              c10::toString(parameters) + ", which the loss function mixes (" + words +
                              "). Convert one of them: the batch with to(torch::kFloat), or the model with "
                              "model->to(torch::kDouble) before its optimizer is made.");
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
