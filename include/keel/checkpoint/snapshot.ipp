// Definitions for snapshot.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <keel/checkpoint/for_each_in_parallel.hpp>
#include <keel/checkpoint/snapshot.hpp>
#include <keel/checkpoint/stream_copy.hpp>
#include <keel/core/out_of_memory.hpp>
#include <map>
#include <tuple>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {
/// Bytes that a thread copies per work item.
inline constexpr std::size_t snapshot_block_size = std::size_t{1} << 20;
}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY snapshot snapshot_buffers::copy(snapshot const& live) {
  at::NoGradGuard const no_grad;
  snapshot held;
  held.model_slices = live.model_slices;
  held.optimizer_slices = live.optimizer_slices;
  held.tensor_slices = live.tensor_slices;
  held.state = live.state;
  held.finite = live.finite;
  held.generation = live.generation;
  held.run = live.run;
  held.attempt = live.attempt;
  held.best = live.best;
  used_ = 0;
  blocks_.clear();
  copy(live.model, held.model);
  copy(live.optimizer, held.optimizer);
  copy(live.tensors, held.tensors);
  buffers_.resize(used_);
  detail::for_each_in_parallel(blocks_.size(), blocks_.size() * detail::snapshot_block_size, [&](std::size_t i) {
    auto const [to, from, count] = blocks_[i];
    detail::stream_copy(to, from, count);
  });
  return held;
}

KEEL_BODY std::optional<snapshot> snapshot_buffers::copy_if_room(snapshot const& live) {
  try {
    return copy(live);
  } catch (std::exception const& thrown) {
    if (!is_out_of_memory(thrown)) throw;
    clear();
    return std::nullopt;
  }
}

KEEL_BODY void snapshot_buffers::copy(tensor_map const& from, tensor_map& to) {
  // Keyed by memory, not by handle, because two names of one parameter are two handles.
  std::map<
      std::tuple<void const*, std::int64_t, std::vector<std::int64_t>, std::vector<std::int64_t>, at::ScalarType, bool, bool>,
      at::Tensor>
      seen;
  for (auto const& [name, tensor] : from) {
    // Nothing to copy; the writer rejects such a tensor by name.
    if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.has_storage()) {
      to.emplace(name, tensor);
      continue;
    }
    auto const [known, first] =
        seen.try_emplace({tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset(), tensor.sizes().vec(),
                          tensor.strides().vec(), tensor.scalar_type(), tensor.is_conj(), tensor.is_neg()});
    if (first) known->second = copy(tensor);
    to.emplace(name, known->second);
  }
}

KEEL_BODY at::Tensor snapshot_buffers::copy(at::Tensor const& live) {
  at::Tensor const& buffer = buffer_like(live);
  bool const plain = live.device().is_cpu() && live.is_contiguous() && !live.is_conj() && !live.is_neg();
  if (!plain) {
    buffer.copy_(live);
    return buffer;
  }
  auto* const to = static_cast<char*>(buffer.data_ptr());
  auto const* const from = static_cast<char const*>(live.data_ptr());
  for (std::size_t at = 0; at < live.nbytes(); at += detail::snapshot_block_size)
    blocks_.push_back({to + at, from + at, std::min(detail::snapshot_block_size, live.nbytes() - at)});
  return buffer;
}

KEEL_BODY at::Tensor const& snapshot_buffers::buffer_like(at::Tensor const& live) {
  if (used_ == buffers_.size()) buffers_.emplace_back();
  at::Tensor& buffer = buffers_[used_++];
  bool const fits = buffer.defined() && buffer.sizes() == live.sizes() && buffer.scalar_type() == live.scalar_type();
  // Pinned memory allows copies from a device at full bus speed.
  if (!fits) buffer = at::empty(live.sizes(), at::TensorOptions().dtype(live.scalar_type()).pinned_memory(live.is_cuda()));
  return buffer;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
