// Collectives on tensors. All ranks must call the same collectives in the same order; with one rank they do nothing.
//     keel::all_reduce(world, tensor);                       in place: the elementwise sum over all ranks
//     keel::all_reduce(world, tensor, keel::reduce::mean{});
//     at::Tensor all = keel::all_gather(world, tensor);      [size, ..], in rank order
//     at::Tensor mine = keel::reduce_scatter(world, tensor); this rank's part of the sum
// Tensors must be dense, of a floating-point, integer or bool dtype, on any device that the group supports. float16 and bfloat16 are summed
// in float32, in rank order. The result is bitwise identical on all ranks. Throws world_error (E25) if a rank exited or timed out,
// world_error (E26) if ranks call different collectives, and error (E12) for an unsupported tensor.
// Not supported: sparse tensors, and subgroups of the ranks.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <concepts>
#include <keel/collective/world.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <memory>
#include <type_traits>

namespace keel::detail::inline KEEL_MODE {

void all_reduce_in_place(world_of_ranks const& world, at::Tensor const& tensor, reduction_kind how, bool is_mean);
/// Starts an in-place sum without waiting for the other ranks. Needs at least two ranks and a contiguous tensor of float, double, int32,
/// int64 or uint8. Returns null if the sum is already complete.
std::unique_ptr<pending_collective> begin_all_reduce(world_of_ranks const& world, at::Tensor& sum);
/// Starts an all-gather into `all`, of shape [size(), ..]. Needs at least two ranks. Returns null if it is already complete.
std::unique_ptr<pending_collective> begin_all_gather(world_of_ranks const& world, at::Tensor const& local, at::Tensor& all);
/// Starts an all-to-all of `parts`, whose first dimension is size(), into `received`, of the same shape. Needs at least two ranks. Returns
/// null if it is already complete.
std::unique_ptr<pending_collective> begin_all_to_all(world_of_ranks const& world, at::Tensor const& parts,
                                                     at::Tensor& received);
/// Starts a low-latency all-gather of a few numbers; every call must use the same count. Returns null if it is already complete.
std::unique_ptr<pending_collective> begin_small_all_gather(world_of_ranks const& world, at::Tensor const& local,
                                                           at::Tensor& all);
at::Tensor all_gather_tensor(world_of_ranks const& world, at::Tensor const& local);
at::Tensor reduce_scatter_sum(world_of_ranks const& world, at::Tensor const& whole, bool is_mean);
void broadcast_in_place(world_of_ranks const& world, at::Tensor const& tensor, int from);
at::Tensor all_to_all_parts(world_of_ranks const& world, at::Tensor const& parts);
void run_barrier(world_of_ranks const& world);

template <class Reduction>
constexpr reduction_kind kind_of_reduction = std::same_as<Reduction, reduce::min>   ? reduction_kind::min
                                             : std::same_as<Reduction, reduce::max> ? reduction_kind::max
                                                                                    : reduction_kind::sum;

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Reduces `tensor` elementwise over all ranks, in place, by sum unless another reduction is given. Accepts any strides. Collective.
template <class World, reduction Reduction = reduce::sum>
void all_reduce(World const& world, at::Tensor const& tensor, Reduction = {}) {
  if constexpr (std::same_as<World, world_of_ranks>)
    detail::all_reduce_in_place(world, tensor, detail::kind_of_reduction<Reduction>, std::same_as<Reduction, reduce::mean>);
}

/// Returns a tensor of shape [size, ..] with the tensors of all ranks, in rank order. Shapes and dtypes must be equal. Collective.
template <class World>
at::Tensor all_gather(World const& world, at::Tensor const& local) {
  if constexpr (std::same_as<World, world_of_ranks>) return detail::all_gather_tensor(world, local);
  return local.unsqueeze(0);
}

/// Returns this rank's part of the sum or mean over all ranks. size() must divide the first dimension. Collective.
template <class World, reduction Reduction = reduce::sum>
at::Tensor reduce_scatter(World const& world, at::Tensor const& whole, Reduction = {}) {
  static_assert(std::same_as<Reduction, reduce::sum> || std::same_as<Reduction, reduce::mean>,
                "reduce_scatter() takes keel::reduce::sum or keel::reduce::mean.");
  if constexpr (std::same_as<World, world_of_ranks>)
    return detail::reduce_scatter_sum(world, whole, std::same_as<Reduction, reduce::mean>);
  return whole;
}

/// Copies the tensor of rank `from` to all ranks, in place. Collective.
template <class World>
void broadcast(World const& world, at::Tensor const& tensor, int from = 0) {
  if constexpr (std::same_as<World, world_of_ranks>) detail::broadcast_in_place(world, tensor, from);
}

/// Sends the r-th part of `parts` to rank r and returns the received parts, in rank order. size() must divide the first dimension.
/// Collective.
template <class World>
at::Tensor all_to_all(World const& world, at::Tensor const& parts) {
  if constexpr (std::same_as<World, world_of_ranks>) return detail::all_to_all_parts(world, parts);
  return parts;
}

/// Blocks until all ranks have called it. Collective.
template <class World>
void barrier(World const& world) {
  if constexpr (std::same_as<World, world_of_ranks>) detail::run_barrier(world);
}

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/collective/collectives.ipp>
#endif
