// Broadcasts module buffers from rank 0, such as batch norm's statistics, which otherwise depend on each rank's rows.
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
  /// Collects the buffers of these models and allocates the memory to broadcast them.
  void prepare(std::vector<torch::nn::Module const*> const& models);
  /// Total bytes of the buffers.
  std::int64_t bytes() const;
  /// Throws world_error (E26) if the ranks' buffers differ in total bytes. Collective.
  void verify_sizes(world_of_ranks const& world) const;
  /// Broadcasts rank 0's buffers. Collective; all ranks must have as many bytes. Throws world_error (E25).
  void share(world_of_ranks const& world) const;

 private:
  /// By dtype: one collective for each, since the buffers of batch normalisation are many and small.
  std::map<at::ScalarType, std::vector<at::Tensor>> buffers_;
  std::map<at::ScalarType, at::Tensor> flat_;  ///< flat copies for the broadcast
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/shard/shared_buffers.ipp>
#endif
