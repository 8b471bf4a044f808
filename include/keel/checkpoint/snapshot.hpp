// The content of a checkpoint, and a copy of it in host memory, which training does not modify.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <keel/checkpoint/tensor_map.hpp>
#include <keel/checkpoint/tensor_slice.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// The content of a checkpoint.
struct snapshot {
  tensor_map model;
  tensor_map optimizer;
  tensor_map tensors;  ///< tensors of `state`
  // Those of which this has a slice only: in a rank's portion of a checkpoint, and of what ranks read together.
  slice_map model_slices, optimizer_slices, tensor_slices;
  nlohmann::json state;
  std::int64_t generation = 0;      ///< rollbacks of the run so far; a later generation is newer even at a lower update
  std::string run = {};             ///< id of the run; unchanged by resumes and rollbacks
  std::int64_t attempt = 0;         ///< updates attempted so far; of two saves of one update, the higher is newer
  std::vector<std::int64_t> best;   ///< updates of the best checkpoints at the time of this one
  std::vector<std::string> finite;  ///< names in `model` that must be finite; otherwise the save throws (N13)
};

/// Host buffers that successive snapshots are copied into. Buffers are reused for tensors of the same position, shape and
/// dtype, so that nothing is allocated from the second save on. Names that share a tensor still share it in the copy.
class snapshot_buffers {
 public:
  /// Copies the snapshot's tensors. Dense CPU tensors are copied by several threads. The result is valid until the next call.
  snapshot copy(snapshot const& live);
  /// As copy(); if memory has no room for it, frees the buffers and returns nullopt.
  std::optional<snapshot> copy_if_room(snapshot const& live);
  /// Frees the buffers.
  void clear() { buffers_.clear(); }

 private:
  struct block {
    char* to;
    char const* from;
    std::size_t count;
  };

  void copy(tensor_map const& from, tensor_map& to);
  at::Tensor copy(at::Tensor const& live);
  at::Tensor const& buffer_like(at::Tensor const& live);

  std::vector<at::Tensor> buffers_;
  std::size_t used_ = 0;
  std::vector<block> blocks_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/checkpoint/snapshot.ipp>
#endif
