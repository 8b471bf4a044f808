// Definitions for collectives.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/StringUtil.h>

#include <keel/collective/collectives.hpp>
#include <keel/collective/reduce_into.hpp>
#include <keel/core/error.hpp>
#include <string>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Throws error (E12) unless the tensor is a defined, dense tensor of real numbers.
inline void require_dense_tensor(char const* what, at::Tensor const& tensor) {
  char const* const reason = !tensor.defined()                 ? "undefined"
                             : tensor.layout() != at::kStrided ? "sparse"
                             : tensor.is_complex()             ? "complex"
                             : tensor.is_quantized()           ? "quantized"
                                                               : nullptr;
  if (reason != nullptr)
    throw error("E12", std::string(what) + " requires a dense tensor of real numbers, but this one is " + reason +
                           ". Pass a dense, real one, such as tensor.to_dense() or at::view_as_real(tensor).");
}

inline void require_parts(char const* what, at::Tensor const& tensor, int ranks) {
  require_dense_tensor(what, tensor);
  if (tensor.dim() > 0 && tensor.size(0) % ranks == 0) return;
  throw error("E12", std::string(what) + " splits the first dimension evenly among the " + std::to_string(ranks) +
                         " ranks, but the tensor has shape " + c10::str(tensor.sizes()) +
                         ". Pad its first dimension to a multiple of " + std::to_string(ranks) + ".");
}

/// True for the dtypes that every transport can reduce.
inline bool is_reducible(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kInt || dtype == at::kLong || dtype == at::kByte;
}

/// Returns the dtype in which values of `dtype` are reduced, for dtypes that transports do not reduce.
inline at::ScalarType accumulation_dtype(at::ScalarType dtype) {
  return at::isFloatingType(dtype) ? at::kFloat : dtype == at::kBool ? at::kByte : at::kInt;
}

/// Divides in place; integer means are rounded down.
inline void divide(at::Tensor& sum, int ranks) {
  if (at::isFloatingType(sum.scalar_type())) {
    sum.div_(ranks);
  } else {
    sum.div_(ranks, "floor");
  }
}

/// Returns a view as bytes, a dtype that every transport can move.
inline at::Tensor as_bytes(at::Tensor const& dense) { return dense.view(-1).view(at::kByte); }

inline at::Tensor all_gather_dense(world_of_ranks const& world, transport& backend, at::Tensor const& dense) {
  std::vector<std::int64_t> shape{world.size()};
  shape.insert(shape.end(), dense.sizes().begin(), dense.sizes().end());
  at::Tensor all = at::empty(shape, dense.options().requires_grad(false));
  if (dense.numel() == 0) return all;
  at::Tensor bytes = all.view(at::kByte).view({world.size(), -1});
  backend.all_gather(as_bytes(dense), bytes);
  return all;
}

KEEL_BODY void all_reduce_in_place(world_of_ranks const& world, at::Tensor const& tensor, reduction_kind how, bool is_mean) {
  require_dense_tensor("all_reduce", tensor);
  transport* const backend = world.begin("all_reduce", tensor.numel());
  if (backend == nullptr) return;
  at::NoGradGuard const no_grad;
  at::Tensor dense = tensor.detach().contiguous();
  if (is_reducible(dense.scalar_type())) {
    if (dense.numel() > 0) backend->all_reduce(dense, how);
  } else {
    dense = reduce_rows(all_gather_dense(world, *backend, dense).to(accumulation_dtype(dense.scalar_type())), how);
  }
  world.mark_completed();
  if (is_mean) divide(dense, world.size());
  if (!dense.is_alias_of(tensor)) tensor.detach().copy_(dense);
}

/// Wraps a pending collective and records its completion in the world.
class tracked_collective final : public pending_collective {
 public:
  tracked_collective(std::unique_ptr<pending_collective> of, world_of_ranks world)
      : inner_(std::move(of)), world_(std::move(world)), number_(world_.collectives()) {}
  bool is_done() override { return inner_->is_done(); }
  void wait() override {
    inner_->wait();
    world_.mark_completed(number_);
  }

 private:
  std::unique_ptr<pending_collective> inner_;
  world_of_ranks world_;
  std::int64_t number_;
};
/// Returns null, and records the completion, if `begun` is null because the collective is already complete.
inline std::unique_ptr<pending_collective> track_collective(world_of_ranks const& world,
                                                            std::unique_ptr<pending_collective> begun) {
  if (begun != nullptr) return std::make_unique<tracked_collective>(std::move(begun), world);
  world.mark_completed();
  return nullptr;
}

KEEL_BODY std::unique_ptr<pending_collective> begin_all_reduce(world_of_ranks const& world, at::Tensor& sum) {
  return track_collective(world, world.begin("all_reduce", sum.numel())->begin_all_reduce(sum, reduction_kind::sum));
}

KEEL_BODY std::unique_ptr<pending_collective> begin_all_gather(world_of_ranks const& world, at::Tensor const& local,
                                                               at::Tensor& all) {
  at::Tensor bytes = all.view(at::kByte).view({world.size(), -1});
  return track_collective(world, world.begin("all_gather", local.numel())->begin_all_gather(as_bytes(local), bytes));
}

KEEL_BODY std::unique_ptr<pending_collective> begin_all_to_all(world_of_ranks const& world, at::Tensor const& parts,
                                                               at::Tensor& received) {
  at::Tensor bytes = as_bytes(received);
  return track_collective(world, world.begin("all_to_all", parts.numel())->begin_all_to_all(as_bytes(parts), bytes));
}

KEEL_BODY std::unique_ptr<pending_collective> begin_small_all_gather(world_of_ranks const& world, at::Tensor const& local,
                                                                     at::Tensor& all) {
  at::Tensor bytes = all.view(at::kByte).view({world.size(), -1});
  return track_collective(world,
                          world.begin("control all-gather", local.numel())->begin_small_all_gather(as_bytes(local), bytes));
}

KEEL_BODY at::Tensor all_gather_tensor(world_of_ranks const& world, at::Tensor const& local) {
  require_dense_tensor("all_gather", local);
  transport* const backend = world.begin("all_gather", local.numel());
  at::NoGradGuard const no_grad;
  if (backend == nullptr) return local.detach().unsqueeze(0);
  at::Tensor all = all_gather_dense(world, *backend, local.detach().contiguous());
  world.mark_completed();
  return all;
}

KEEL_BODY at::Tensor all_to_all_parts(world_of_ranks const& world, at::Tensor const& parts) {
  require_parts("all_to_all", parts, world.size());
  transport* const backend = world.begin("all_to_all", parts.numel());
  at::NoGradGuard const no_grad;
  if (backend == nullptr) return parts.detach();
  at::Tensor const dense = parts.detach().contiguous();
  at::Tensor received = at::empty_like(dense);
  if (dense.numel() > 0) {
    at::Tensor bytes = as_bytes(received);
    backend->all_to_all(as_bytes(dense), bytes);
  }
  world.mark_completed();
  return received;
}

KEEL_BODY at::Tensor reduce_scatter_sum(world_of_ranks const& world, at::Tensor const& whole, bool is_mean) {
  require_parts("reduce_scatter", whole, world.size());
  at::NoGradGuard const no_grad;
  if (world.size() == 1) return whole.detach();
  // Gloo has no reduce_scatter before LibTorch 2.6, and does not sum in rank order. Here each rank sums its own part in rank order.
  at::Tensor const parts = all_to_all_parts(world, whole);
  bool const widens = !is_reducible(parts.scalar_type());
  at::Tensor const all = (widens ? parts.to(accumulation_dtype(parts.scalar_type())) : parts).view({world.size(), -1});
  at::Tensor sum = reduce_rows(all, reduction_kind::sum);
  if (is_mean) divide(sum, world.size());
  std::vector<std::int64_t> shape = whole.sizes().vec();
  shape[0] /= world.size();
  return sum.view(shape).to(whole.scalar_type());
}

KEEL_BODY void broadcast_in_place(world_of_ranks const& world, at::Tensor const& tensor, int from) {
  require_dense_tensor("broadcast", tensor);
  if (from < 0 || from >= world.size())
    throw error("E12", "broadcast: `from` is " + std::to_string(from) + ", but the ranks are 0 to " +
                           std::to_string(world.size() - 1) + ". Pass one of them.");
  transport* const backend = world.begin("broadcast", tensor.numel());
  if (backend == nullptr || tensor.numel() == 0) return world.mark_completed();
  at::NoGradGuard const no_grad;
  at::Tensor const dense = tensor.detach().contiguous();
  at::Tensor bytes = as_bytes(dense);
  backend->broadcast(bytes, from);
  world.mark_completed();
  if (!dense.is_alias_of(tensor)) tensor.detach().copy_(dense);
}

KEEL_BODY void run_barrier(world_of_ranks const& world) {
  if (transport* const backend = world.begin("barrier", 0)) backend->barrier();
  world.mark_completed();
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
