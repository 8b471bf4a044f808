// The bodies of collectives.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <keel/collective/collectives.hpp>
#include <keel/collective/fold.hpp>
#include <keel/core/error.hpp>
#include <string>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Throws error (E12).
inline void require_takeable(char const* what, at::Tensor const& tensor) {
  char const* const reason = !tensor.defined()                 ? "undefined"
                             : tensor.layout() != at::kStrided ? "sparse"
                             : tensor.is_complex()             ? "complex"
                             : tensor.is_quantized()           ? "quantized"
                                                               : nullptr;
  if (reason != nullptr)
    throw error("E12", std::string(what) + " takes a dense tensor of numbers, and this one is " + reason +
                           ". Give it a dense one, such as tensor.to_dense() or at::view_as_real(tensor).");
}

inline void require_parts(char const* what, at::Tensor const& tensor, int ranks) {
  require_takeable(what, tensor);
  if (tensor.dim() > 0 && tensor.size(0) % ranks == 0) return;
  throw error("E12", std::string(what) + " cuts the first dimension into a part for each of the " + std::to_string(ranks) +
                         " ranks, and this tensor has " +
                         (tensor.dim() == 0 ? "none" : std::to_string(tensor.size(0)) + " rows there") + ". Pad it.");
}

/// The dtypes that every transport adds up by itself.
inline bool is_reducible(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kInt || dtype == at::kLong || dtype == at::kByte;
}

/// For values that are compared or added in another dtype without loss.
inline at::ScalarType wider(at::ScalarType dtype) {
  return at::isFloatingType(dtype) ? at::kFloat : dtype == at::kBool ? at::kByte : at::kInt;
}

/// The mean of integers is rounded down.
inline void divide(at::Tensor& sum, int ranks) {
  if (at::isFloatingType(sum.scalar_type())) {
    sum.div_(ranks);
  } else {
    sum.div_(ranks, "floor");
  }
}

/// As bytes; every transport moves those.
inline at::Tensor as_bytes(at::Tensor const& dense) { return dense.view(-1).view(at::kByte); }

inline at::Tensor gather_dense(world_of_ranks const& world, transport& by, at::Tensor const& dense) {
  std::vector<std::int64_t> shape{world.size()};
  shape.insert(shape.end(), dense.sizes().begin(), dense.sizes().end());
  at::Tensor all = at::empty(shape, dense.options().requires_grad(false));
  if (dense.numel() == 0) return all;
  at::Tensor bytes = all.view(at::kByte).view({world.size(), -1});
  by.all_gather(as_bytes(dense), bytes);
  return all;
}

KEEL_BODY void all_reduce_in_place(world_of_ranks const& world, at::Tensor const& tensor, reduction_kind how, bool is_mean) {
  require_takeable("all_reduce", tensor);
  transport* const by = world.begin("all_reduce", tensor.numel());
  if (by == nullptr) return;
  at::NoGradGuard const no_grad;
  at::Tensor dense = tensor.detach().contiguous();
  if (is_reducible(dense.scalar_type())) {
    if (dense.numel() > 0) by->all_reduce(dense, how);
  } else {
    dense = folded(gather_dense(world, *by, dense).to(wider(dense.scalar_type())), how);
  }
  world.completed();
  if (is_mean) divide(dense, world.size());
  if (!dense.is_alias_of(tensor)) tensor.detach().copy_(dense);
}

/// That of another transport, whose end the world learns.
class noted_collective final : public collective_under_way {
 public:
  noted_collective(std::unique_ptr<collective_under_way> of, world_of_ranks world)
      : of_(std::move(of)), world_(std::move(world)), number_(world_.collectives()) {}
  bool is_done() override { return of_->is_done(); }
  void wait() override {
    of_->wait();
    world_.completed(number_);
  }

 private:
  std::unique_ptr<collective_under_way> of_;
  world_of_ranks world_;
  std::int64_t number_;
};
/// Null, as `begun` is, where it is done.
inline std::unique_ptr<collective_under_way> noted(world_of_ranks const& world, std::unique_ptr<collective_under_way> begun) {
  if (begun != nullptr) return std::make_unique<noted_collective>(std::move(begun), world);
  world.completed();
  return nullptr;
}

KEEL_BODY std::unique_ptr<collective_under_way> begin_all_reduce(world_of_ranks const& world, at::Tensor& sum) {
  return noted(world, world.begin("all_reduce", sum.numel())->begin_all_reduce(sum, reduction_kind::sum));
}

KEEL_BODY std::unique_ptr<collective_under_way> begin_all_gather(world_of_ranks const& world, at::Tensor const& mine,
                                                                 at::Tensor& all) {
  at::Tensor bytes = all.view(at::kByte).view({world.size(), -1});
  return noted(world, world.begin("all_gather", mine.numel())->begin_all_gather(as_bytes(mine), bytes));
}

KEEL_BODY std::unique_ptr<collective_under_way> begin_agreement(world_of_ranks const& world, at::Tensor const& mine,
                                                                at::Tensor& all) {
  at::Tensor bytes = all.view(at::kByte).view({world.size(), -1});
  return noted(world, world.begin("the agreement", mine.numel())->begin_agreement(as_bytes(mine), bytes));
}

KEEL_BODY at::Tensor gather_all(world_of_ranks const& world, at::Tensor const& mine) {
  require_takeable("all_gather", mine);
  transport* const by = world.begin("all_gather", mine.numel());
  at::NoGradGuard const no_grad;
  if (by == nullptr) return mine.detach().unsqueeze(0);
  at::Tensor all = gather_dense(world, *by, mine.detach().contiguous());
  world.completed();
  return all;
}

KEEL_BODY at::Tensor exchange_parts(world_of_ranks const& world, at::Tensor const& parts) {
  require_parts("all_to_all", parts, world.size());
  transport* const by = world.begin("all_to_all", parts.numel());
  at::NoGradGuard const no_grad;
  if (by == nullptr) return parts.detach();
  at::Tensor const dense = parts.detach().contiguous();
  at::Tensor received = at::empty_like(dense);
  if (dense.numel() > 0) {
    at::Tensor bytes = as_bytes(received);
    by->all_to_all(as_bytes(dense), bytes);
  }
  world.completed();
  return received;
}

KEEL_BODY at::Tensor scatter_sum(world_of_ranks const& world, at::Tensor const& whole, bool is_mean) {
  require_parts("reduce_scatter", whole, world.size());
  at::NoGradGuard const no_grad;
  if (world.size() == 1) return whole.detach();
  // Gloo has none before LibTorch 2.6, and the order of its sum is its own: here each rank adds in the order of the ranks.
  at::Tensor const parts = exchange_parts(world, whole);
  bool const widens = !is_reducible(parts.scalar_type());
  at::Tensor const all = (widens ? parts.to(wider(parts.scalar_type())) : parts).view({world.size(), -1});
  at::Tensor sum = folded(all, reduction_kind::sum);
  if (is_mean) divide(sum, world.size());
  std::vector<std::int64_t> shape = whole.sizes().vec();
  shape[0] /= world.size();
  return sum.view(shape).to(whole.scalar_type());
}

KEEL_BODY void broadcast_in_place(world_of_ranks const& world, at::Tensor const& tensor, int from) {
  require_takeable("broadcast", tensor);
  if (from < 0 || from >= world.size())
    throw error("E12", "broadcast is from rank " + std::to_string(from) + ", and this world has the ranks 0 to " +
                           std::to_string(world.size() - 1) + ".");
  transport* const by = world.begin("broadcast", tensor.numel());
  if (by == nullptr || tensor.numel() == 0) return world.completed();
  at::NoGradGuard const no_grad;
  at::Tensor const dense = tensor.detach().contiguous();
  at::Tensor bytes = as_bytes(dense);
  by->broadcast(bytes, from);
  world.completed();
  if (!dense.is_alias_of(tensor)) tensor.detach().copy_(dense);
}

KEEL_BODY void meet(world_of_ranks const& world) {
  if (transport* const by = world.begin("barrier", 0)) by->barrier();
  world.completed();
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
