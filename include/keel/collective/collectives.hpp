// What the ranks of a world do with a tensor. All of them call the same, in the same order; a world of one does nothing, at no cost.
//     keel::all_reduce(world, tensor);                       in place: the sum of all ranks' elements
//     keel::all_reduce(world, tensor, keel::reduce::mean{});
//     at::Tensor all = keel::all_gather(world, tensor);      [size, ..] of what each rank has
//     at::Tensor mine = keel::reduce_scatter(world, tensor); this rank's part of the sum
// Any dense tensor of a floating-point or integer dtype or bool, on any device that the group serves. Sums of float16 and bfloat16 are
// made in float32, in the order of the ranks. Every rank has the same bits. Throws world_error (E25) where a rank is gone or too late,
// world_error (E26) where one calls something else, and error (E12) for a tensor that no collective takes.
// Left out: sparse tensors, and collectives of some of the ranks.
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
/// Of several ranks, and of a contiguous tensor of float, double, int32, int64 or uint8: does not wait for the others. Null: it is done.
std::unique_ptr<pending_collective> begin_all_reduce(world_of_ranks const& world, at::Tensor& sum);
/// Of several ranks: `all`, of [size(), ..], is what each of them has.
std::unique_ptr<pending_collective> begin_all_gather(world_of_ranks const& world, at::Tensor const& local, at::Tensor& all);
/// The same of some numbers, always as many, with the least delay.
std::unique_ptr<pending_collective> begin_agreement(world_of_ranks const& world, at::Tensor const& local, at::Tensor& all);
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

/// In place, of any strides.
template <class World, reduction Reduction = reduce::sum>
void all_reduce(World const& world, at::Tensor const& tensor, Reduction = {}) {
  if constexpr (std::same_as<World, world_of_ranks>)
    detail::all_reduce_in_place(world, tensor, detail::kind_of_reduction<Reduction>, std::same_as<Reduction, reduce::mean>);
}

/// [size, ..]: what each rank has, in their order.
template <class World>
at::Tensor all_gather(World const& world, at::Tensor const& local) {
  if constexpr (std::same_as<World, world_of_ranks>) return detail::all_gather_tensor(world, local);
  return local.unsqueeze(0);
}

/// Of a tensor whose first dimension size() divides: this rank's part of the ranks' sum or mean.
template <class World, reduction Reduction = reduce::sum>
at::Tensor reduce_scatter(World const& world, at::Tensor const& whole, Reduction = {}) {
  static_assert(std::same_as<Reduction, reduce::sum> || std::same_as<Reduction, reduce::mean>,
                "reduce_scatter() takes keel::reduce::sum or keel::reduce::mean.");
  if constexpr (std::same_as<World, world_of_ranks>)
    return detail::reduce_scatter_sum(world, whole, std::same_as<Reduction, reduce::mean>);
  return whole;
}

/// In place: what rank `from` has.
template <class World>
void broadcast(World const& world, at::Tensor const& tensor, int from = 0) {
  if constexpr (std::same_as<World, world_of_ranks>) detail::broadcast_in_place(world, tensor, from);
}

/// Of a tensor whose first dimension size() divides, each part of which is for one rank: what the ranks have for this one, in their order.
template <class World>
at::Tensor all_to_all(World const& world, at::Tensor const& parts) {
  if constexpr (std::same_as<World, world_of_ranks>) return detail::all_to_all_parts(world, parts);
  return parts;
}

/// Returns when all ranks have called it.
template <class World>
void barrier(World const& world) {
  if constexpr (std::same_as<World, world_of_ranks>) detail::run_barrier(world);
}

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/collective/collectives.ipp>
#endif
