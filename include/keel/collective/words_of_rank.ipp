// The bodies of words_of_rank.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <keel/collective/collectives.hpp>
#include <keel/collective/words_of_rank.hpp>

#include <keel/core/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY std::string words_of_rank(world_of_ranks const& world, std::string const& mine, int from) {
  if (world.size() == 1) return mine;
  at::Tensor const length = at::full({1}, static_cast<std::int64_t>(mine.size()), at::kLong);
  broadcast(world, length, from);
  at::Tensor const text = at::zeros({length.item<std::int64_t>()}, at::kByte);
  if (world.rank() == from) std::memcpy(text.data_ptr(), mine.data(), mine.size());
  broadcast(world, text, from);
  return {static_cast<char const*>(text.data_ptr()), static_cast<std::size_t>(text.numel())};
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/core/detail/body_end.inc>
