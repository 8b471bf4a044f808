// What one checkpoint holds, and a copy of it in host memory that training may go on beside.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <keel/checkpoint/tensor_map.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

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
  snapshot copy(snapshot const& live);
  /// Nothing where memory has no room for it; the buffers are freed then.
  std::optional<snapshot> copy_if_room(snapshot const& live);
  /// Gives the memory back.
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
