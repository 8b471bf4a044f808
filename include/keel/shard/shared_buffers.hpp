// Buffers that are rank 0's on all ranks, such as the statistics of batch normalisation, which each rank has of the rows that it sees.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <keel/collective/world_of_ranks.hpp>
#include <map>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

class shared_buffers {
 public:
  /// Allocates what it takes for those that these models have now.
  void prepare(std::vector<torch::nn::Module const*> const& models);
  /// Bytes of all of them.
  std::int64_t bytes() const;
  /// All ranks: throws world_error (E26) where they do not have as many bytes.
  void verify_sizes(world_of_ranks const& world) const;
  /// All ranks, which have as many: rank 0's are everyone's. Throws world_error (E25).
  void share(world_of_ranks const& world) const;

 private:
  /// By dtype: one collective for each, since the buffers of batch normalisation are many and small.
  std::map<at::ScalarType, std::vector<at::Tensor>> buffers_;
  std::map<at::ScalarType, at::Tensor> flat_;  ///< in which they go to the other ranks
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/shard/shared_buffers.ipp>
#endif
