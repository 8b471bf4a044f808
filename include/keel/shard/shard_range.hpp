// How the elements of a parameter are divided among the ranks.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <keel/libtorch/mode.hpp>

namespace keel::detail::inline KEEL_MODE {

/// A range of a tensor's elements, in memory order.
struct element_range {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

/// Returns the shard of a rank in the `index`-th parameter, which has `elements` elements. Shards are aligned to cache lines, so that
/// vectorized loops round each element as in the full tensor. The remainder goes to a different rank for each parameter.
inline element_range compute_shard_range(std::int64_t elements, std::size_t index, int rank, int size) {
  constexpr std::int64_t cache_line_elements = 64;
  std::int64_t const lines = (elements + cache_line_elements - 1) / cache_line_elements;
  std::int64_t const part = (rank + static_cast<std::int64_t>(index % static_cast<std::size_t>(size))) % size;
  auto const begin_of = [&](std::int64_t at) { return std::min(elements, lines * at / size * cache_line_elements); };
  return {begin_of(part), begin_of(part + 1) - begin_of(part)};
}

/// Returns the elements in the memory order of `like`, in one dimension: a view if the strides are equal, else a copy.
inline at::Tensor in_memory_order(at::Tensor const& tensor, at::Tensor const& like) {
  at::Tensor same = tensor;
  if (tensor.strides() != like.strides())
    same = at::empty_strided(like.sizes(), like.strides(), tensor.options().requires_grad(false)).copy_(tensor);
  return same.as_strided({same.numel()}, {1}, same.storage_offset());
}

}  // namespace keel::detail::inline KEEL_MODE
