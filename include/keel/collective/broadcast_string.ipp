// Definitions for broadcast_string.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <keel/collective/broadcast_string.hpp>
#include <keel/collective/collectives.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY std::string broadcast_string(world_of_ranks const& world, std::string const& local, int from) {
  if (world.size() == 1) return local;
  at::Tensor const length = at::full({1}, static_cast<std::int64_t>(local.size()), at::kLong);
  broadcast(world, length, from);
  at::Tensor const text = at::zeros({length.item<std::int64_t>()}, at::kByte);
  // An empty tensor's data pointer is null.
  if (world.rank() == from && !local.empty()) std::memcpy(text.data_ptr(), local.data(), local.size());
  broadcast(world, text, from);
  return {static_cast<char const*>(text.data_ptr()), static_cast<std::size_t>(text.numel())};
}

KEEL_BODY std::string exchange_failure_message(world_of_ranks const& world, std::string const& local) {
  int const failed = world.combine(reduce::max{}, local.empty() ? -1 : world.rank());
  return failed < 0 ? std::string() : "rank " + std::to_string(failed) + ": " + broadcast_string(world, local, failed);
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
