// Definitions for replicas.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>
#include <keel/collective/broadcast_string.hpp>
#include <keel/collective/collectives.hpp>
#include <keel/core/error.hpp>
#include <keel/shard/replicas.hpp>
#include <string>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY at::Tensor in_memory_order(at::Tensor const& whole) {
  return whole.is_non_overlapping_and_dense() ? whole.as_strided({whole.numel()}, {1}) : whole.reshape(-1);
}

KEEL_BODY std::int64_t bit_checksum(at::Tensor const& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.numel() == 0) return 0;
  at::Tensor const flat = in_memory_order(tensor.detach());
  at::Tensor const bits = flat.is_complex() ? at::view_as_real(flat).view(-1) : flat;
  auto const type = bits.element_size() == 1   ? at::kByte
                    : bits.element_size() == 2 ? at::kShort
                    : bits.element_size() == 4 ? at::kInt
                                               : at::kLong;
  // In pieces: a 64-bit sum of the whole tensor would need a copy of it.
  constexpr std::int64_t piece = 1 << 18;
  std::int64_t sum = 0;
  for (std::int64_t begin = 0; begin < bits.numel(); begin += piece) {
    at::Tensor const one = bits.narrow(0, begin, std::min(piece, bits.numel() - begin)).view(type).sum(at::kLong);
    // Unsigned, because the sum may wrap around.
    sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum) + static_cast<std::uint64_t>(one.item<std::int64_t>()));
  }
  return sum;
}

KEEL_BODY std::string replica_mismatch_message(char const* what, std::string const& name, int rank) {
  return std::string(what) + " " + name + " on rank " + std::to_string(rank) +
         " has diverged from rank 0: it was modified outside the optimizer step, or the ranks computed different results. "
         "Resume from the newest checkpoint, written before the divergence, and check what modifies it.";
}

/// Returns the first lines in which two texts differ.
inline std::pair<std::string, std::string> first_difference(std::string const& a, std::string const& b) {
  for (std::size_t at_a = 0, at_b = 0;;) {
    auto const line = [](std::string const& text, std::size_t& at) {
      if (at >= text.size()) return std::string("nothing");
      std::size_t const end = std::min(text.find('\n', at), text.size());
      std::string const found = text.substr(at, end - at);
      at = end + 1;
      return found;
    };
    std::string const of_a = line(a, at_a), of_b = line(b, at_b);
    if (of_a != of_b || (at_a >= a.size() && at_b >= b.size())) return {of_a, of_b};
  }
}

KEEL_BODY void require_same_lines(world_of_ranks const& world, std::string const& local) {
  std::string const first = broadcast_string(world, local, 0);
  std::int64_t const other = world.combine(reduce::max{}, std::int64_t{local == first ? -1 : world.rank()});
  if (other < 0) return;
  auto const [of_first, of_other] = first_difference(first, broadcast_string(world, local, static_cast<int>(other)));
  throw world_error("E24", "rank 0 has \"" + of_first + "\" where rank " + std::to_string(other) + " has \"" + of_other +
                               "\": they would train differently. Start the same program with the same options on all ranks.");
}

KEEL_BODY void require_replicas(world_of_ranks const& world, char const* what, tensor_map const& tensors) {
  if (world.size() == 1) return;
  at::NoGradGuard const no_grad;
  at::Tensor sums = at::zeros({static_cast<std::int64_t>(tensors.size()) + 1}, at::kLong);
  auto* value = sums.data_ptr<std::int64_t>();
  *value++ = static_cast<std::int64_t>(tensors.size());
  for (auto const& [name, tensor] : tensors) *value++ = bit_checksum(tensor);
  if (world.combine(reduce::min{}, sums.numel()) != world.combine(reduce::max{}, sums.numel()))
    throw world_error("E26",
                      "the ranks no longer have the same tensors. Freeze, add and remove the same tensors on all ranks.");
  at::Tensor const all = all_gather(world, sums);
  for (int rank = 1; rank < world.size(); ++rank) {
    if (all[rank].equal(all[0])) continue;
    std::int64_t const place = all[rank].ne(all[0]).nonzero()[0].item<std::int64_t>();
    auto named = tensors.begin();
    std::advance(named, std::max<std::int64_t>(place - 1, 0));
    throw world_error("E26", replica_mismatch_message(what, named->first, rank));
  }
}

KEEL_BODY void require_matching_collectives(world_of_ranks const& world) {
  if (world.size() == 1) return;
  at::Tensor const ones = at::ones({1}, at::kLong);
  all_reduce(world, ones);
  if (auto const sum = ones.item<std::int64_t>(); sum != world.size())
    throw world_error("E26", "collective mismatch: a control all-reduce over " + std::to_string(world.size()) +
                                 " ranks returned " + std::to_string(sum) + ". Make the same collective calls on all ranks.");
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
