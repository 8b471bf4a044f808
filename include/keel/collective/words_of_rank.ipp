// The bodies of words_of_rank.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <keel/collective/collectives.hpp>
#include <keel/collective/words_of_rank.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY std::string words_of_rank(world_of_ranks const& world, std::string const& mine, int from) {
  if (world.size() == 1) return mine;
  at::Tensor const length = at::full({1}, static_cast<std::int64_t>(mine.size()), at::kLong);
  broadcast(world, length, from);
  at::Tensor const text = at::zeros({length.item<std::int64_t>()}, at::kByte);
  // The memory of an empty tensor is null.
  if (world.rank() == from && !mine.empty()) std::memcpy(text.data_ptr(), mine.data(), mine.size());
  broadcast(world, text, from);
  return {static_cast<char const*>(text.data_ptr()), static_cast<std::size_t>(text.numel())};
}

KEEL_BODY std::string failure_of_any(world_of_ranks const& world, std::string const& mine) {
  int const failed = world.combine(reduce::max{}, mine.empty() ? -1 : world.rank());
  return failed < 0 ? std::string() : "rank " + std::to_string(failed) + ": " + words_of_rank(world, mine, failed);
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
