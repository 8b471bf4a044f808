// Definitions for shared_buffers.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <keel/collective/collectives.hpp>
#include <keel/core/error.hpp>
#include <keel/shard/shared_buffers.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void shared_buffers::prepare(std::vector<torch::nn::Module const*> const& models) {
  buffers_.clear();
  for (torch::nn::Module const* const model : models) {
    for (at::Tensor const& one : model->buffers()) {
      if (one.defined() && one.layout() == at::kStrided && one.numel() > 0) buffers_[one.scalar_type()].push_back(one);
    }
  }
  for (auto const& [dtype, all] : buffers_) {
    std::int64_t elements = 0;
    for (at::Tensor const& one : all) elements += one.numel();
    at::Tensor& flat = flat_[dtype];
    if (!flat.defined() || flat.numel() != elements || flat.device() != all.front().device())
      flat = at::empty({elements}, all.front().options().requires_grad(false));
  }
}

KEEL_BODY std::int64_t shared_buffers::bytes() const {
  std::int64_t sum = 0;
  for (auto const& [dtype, all] : buffers_) sum += static_cast<std::int64_t>(flat_.at(dtype).nbytes());
  return sum;
}

KEEL_BODY void shared_buffers::verify_sizes(world_of_ranks const& world) const {
  if (world.combine(reduce::min{}, bytes()) != world.combine(reduce::max{}, bytes()))
    throw world_error("E26", "the ranks no longer have the same buffers. Use models with the same buffers on all ranks.");
}

KEEL_BODY void shared_buffers::share(world_of_ranks const& world) const {
  at::NoGradGuard const no_grad;
  for (auto const& [dtype, all] : buffers_) {
    at::Tensor const& flat = flat_.at(dtype);
    auto const each = [&](auto const& use) {
      std::int64_t begin = 0;
      for (at::Tensor const& one : all) {
        use(one, flat.narrow(0, begin, one.numel()).view(one.sizes()));
        begin += one.numel();
      }
    };
    each([](at::Tensor const& one, at::Tensor const& in_flat) { in_flat.copy_(one); });
    broadcast(world, flat, 0);
    if (world.rank() != 0) each([](at::Tensor const& one, at::Tensor const& in_flat) { one.copy_(in_flat); });
  }
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
