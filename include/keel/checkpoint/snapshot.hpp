// What one checkpoint holds, and a copy of it in host memory that training may go on beside.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <keel/checkpoint/in_parallel.hpp>
#include <keel/checkpoint/safetensors_writer.hpp>
#include <keel/checkpoint/stream_copy.hpp>
#include <keel/core/out_of_memory.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace keel {

/// All that one checkpoint holds.
struct snapshot {
  tensor_map model;
  tensor_map optimizer;
  tensor_map tensors;  ///< of the state
  nlohmann::json state;
  std::int64_t generation = 0;      ///< rollbacks of the run so far: of a later one, a lower update is newer than a higher
  std::string run = {};             ///< which run's it is; the same through resumes and rollbacks
  std::int64_t attempt = 0;         ///< updates that were attempted so far: of one update, the later save is the newer one
  std::vector<std::int64_t> best;   ///< updates whose checkpoints this one calls the best
  std::vector<std::string> finite;  ///< names in `model` without which no checkpoint is kept that are not finite (N13)
};

/// Buffers in host memory that one snapshot after another is copied into. A buffer is kept by place and reused for a tensor of
/// the same shape and dtype, so that from the second save on nothing is allocated. Names of one tensor stay names of one.
class snapshot_buffers {
 public:
  /// The snapshot with separate tensors. What is on the CPU and dense is copied by several threads. The result is good
  /// until the next call.
  snapshot copy(snapshot const& live) {
    at::NoGradGuard const no_grad;
    snapshot held;
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
    detail::in_parallel(blocks_.size(), blocks_.size() * block_size, [&](std::size_t i) {
      auto const [to, from, count] = blocks_[i];
      detail::stream_copy(to, from, count);
    });
    return held;
  }
  /// Nothing where memory has no room for it; the buffers are freed then.
  std::optional<snapshot> copy_if_room(snapshot const& live) {
    try {
      return copy(live);
    } catch (std::exception const& thrown) {
      if (!is_out_of_memory(thrown)) throw;
      clear();
      return std::nullopt;
    }
  }
  /// Gives the memory back.
  void clear() { buffers_.clear(); }

 private:
  static constexpr std::size_t block_size = 1 << 20;

  struct block {
    char* to;
    char const* from;
    std::size_t count;
  };

  void copy(tensor_map const& from, tensor_map& to) {
    // By the memory they are, not by the handle: a parameter's two names give two handles.
    std::map<
        std::tuple<void const*, std::int64_t, std::vector<std::int64_t>, std::vector<std::int64_t>, at::ScalarType, bool, bool>,
        at::Tensor>
        seen;
    for (auto const& [name, tensor] : from) {
      // What the writer refuses, it refuses by name; there is nothing to copy.
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

  at::Tensor copy(at::Tensor const& live) {
    at::Tensor const& buffer = buffer_like(live);
    bool const plain = live.device().is_cpu() && live.is_contiguous() && !live.is_conj() && !live.is_neg();
    if (!plain) {
      buffer.copy_(live);
      return buffer;
    }
    auto* const to = static_cast<char*>(buffer.data_ptr());
    auto const* const from = static_cast<char const*>(live.data_ptr());
    for (std::size_t at = 0; at < live.nbytes(); at += block_size)
      blocks_.push_back({to + at, from + at, std::min(block_size, live.nbytes() - at)});
    return buffer;
  }

  at::Tensor const& buffer_like(at::Tensor const& live) {
    if (used_ == buffers_.size()) buffers_.emplace_back();
    at::Tensor& buffer = buffers_[used_++];
    bool const fits = buffer.defined() && buffer.sizes() == live.sizes() && buffer.scalar_type() == live.scalar_type();
    // Pinned, a device copies into it at the full speed of the bus.
    if (!fits) buffer = at::empty(live.sizes(), at::TensorOptions().dtype(live.scalar_type()).pinned_memory(live.is_cuda()));
    return buffer;
  }

  std::vector<at::Tensor> buffers_;
  std::size_t used_ = 0;
  std::vector<block> blocks_;
};

}  // namespace keel
