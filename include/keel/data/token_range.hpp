// Rejects token ids outside an embedding's vocabulary. LibTorch's own error on a CPU names neither the id nor its position, and
// on a GPU it corrupts the context.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <keel/core/error.hpp>
#include <string>

namespace keel::inline KEEL_MODE {

/// Checks `tokens`, int64 of any shape. Throws data_error (E06) with the first id outside [0, vocabulary) and its position.
/// Copies the tokens to the CPU, which synchronizes with their device.
inline void require_token_range(at::Tensor const& tokens, std::int64_t vocabulary) {
  at::Tensor const flat = tokens.detach().reshape({-1}).to(at::kCPU, at::kLong).contiguous();
  std::int64_t const* const ids = flat.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocabulary) continue;
    throw data_error("E06", "token " + std::to_string(ids[i]) + " at position " + std::to_string(i) +
                                " of the batch is outside the vocabulary of " + std::to_string(vocabulary) +
                                ". Tokenise the data with the model's own vocabulary.");
  }
}

}  // namespace keel::inline KEEL_MODE
