// Checks that ranks are replicas: equal settings at the start, and bitwise equal tensors at intervals. A parameter that is modified on one
// rank alone may not show in the loss for weeks.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <keel/checkpoint/tensor_map.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <string>

namespace keel::detail::inline KEEL_MODE {

/// Throws world_error (E24), with both lines, if another rank's text differs from rank 0's. Collective.
void require_same_lines(world_of_ranks const& world, std::string const& local);

/// Number of updates between two comparisons of the replicas.
inline constexpr std::int64_t replica_check_interval = 100;

/// Returns the elements in memory order, in one dimension. A view of a dense tensor; otherwise in logical order, with a copy if needed.
at::Tensor in_memory_order(at::Tensor const& whole);
/// Returns the sum of a tensor's elements, read as integers: a change of any single element changes it. 0 for an empty or non-strided
/// tensor.
std::int64_t bit_checksum(at::Tensor const& tensor);
/// Returns the message of world_error (E26) for a tensor that differs.
std::string replica_mismatch_message(char const* what, std::string const& name, int rank);

/// Throws world_error (E26), with the tensor and the rank, if a tensor is not bitwise equal to rank 0's. Collective. `what` describes the
/// tensors in the message.
void require_replicas(world_of_ranks const& world, char const* what, tensor_map const& tensors);

/// Throws world_error (E26) if an all-reduce of ones does not return the number of ranks: a rank is in another collective. Collective.
void require_matching_collectives(world_of_ranks const& world);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/shard/replicas.ipp>
#endif
