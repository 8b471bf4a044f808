// What all ranks have the same of: of what they begin with, and, looked at now and then, of what they train, since a parameter that something
// changes on one rank alone shows in no loss for weeks.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <keel/checkpoint/tensor_map.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <string>

namespace keel::detail::inline KEEL_MODE {

/// All ranks: throws world_error (E24) that names the first line in which another rank's text is not rank 0's, of both.
void require_same_lines(world_of_ranks const& world, std::string const& local);

/// Updates from one look of a step at its replicas to the next.
inline constexpr std::int64_t replica_check_interval = 100;

/// In one dimension as it lies in memory, without a copy where that goes.
at::Tensor in_memory_order(at::Tensor const& whole);
/// Of a tensor's bits: their sum as integers, which a change of any one of them changes.
std::int64_t bit_checksum(at::Tensor const& tensor);
/// What world_error (E26) says of it.
std::string replica_mismatch_message(char const* what, std::string const& name, int rank);

/// All ranks: throws world_error (E26) that names the first of these tensors which is not bit by bit what rank 0 has, and the rank. `what`:
/// of what kind they are.
void require_replicas(world_of_ranks const& world, char const* what, tensor_map const& tensors);

/// All ranks: throws world_error (E26) where a sum of ones is not their number.
void require_matching_collectives(world_of_ranks const& world);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/shard/replicas.ipp>
#endif
