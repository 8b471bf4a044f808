// Diagnoses a batch and a model of two different floating-point dtypes. LibTorch's error message names neither.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <keel/libtorch/mode.hpp>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// Returns the dtype of the batch's first floating-point tensor that is not of `dtype`; nullopt if there is none.
template <class Batch>
std::optional<at::ScalarType> floating_dtype_other_than(Batch const& batch, at::ScalarType dtype) {
  if constexpr (std::is_same_v<Batch, at::Tensor>) {
    bool const differs = batch.defined() && batch.is_floating_point() && batch.scalar_type() != dtype;
    return differs ? std::optional(batch.scalar_type()) : std::nullopt;
  } else if constexpr (std::is_same_v<Batch, std::vector<at::Tensor>>) {
    for (at::Tensor const& one : batch) {
      if (auto const found = floating_dtype_other_than(one, dtype)) return found;
    }
    return std::nullopt;
  } else if constexpr (requires { std::tuple_size<Batch>::value; }) {
    std::optional<at::ScalarType> found;
    std::apply([&](auto const&... one) { ((found = found ? found : floating_dtype_other_than(one, dtype)), ...); }, batch);
    return found;
  } else if constexpr (requires { requires std::is_same_v<std::remove_cvref_t<decltype(batch.data)>, at::Tensor>; }) {
    if (auto const found = floating_dtype_other_than(batch.data, dtype)) return found;
    if constexpr (requires { requires std::is_same_v<std::remove_cvref_t<decltype(batch.target)>, at::Tensor>; }) {
      return floating_dtype_other_than(batch.target, dtype);
    } else {
      return std::nullopt;
    }
  } else {
    return std::nullopt;
  }
}

/// Call in the handler of `thrown`. Throws data_error (E07) if LibTorch rejected the dtypes and `found`, the batch's dtype, is
/// set; otherwise rethrows `thrown`.
[[noreturn]] void rethrow_mixed_dtypes(c10::Error const& thrown, std::optional<at::ScalarType> found,
                                       at::ScalarType parameters);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/gradients/mixed_dtypes.ipp>
#endif
