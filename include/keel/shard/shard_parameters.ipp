// Definitions for shard_parameters.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <exception>
#include <keel/collective/broadcast_string.hpp>
#include <keel/collective/collectives.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/recompute/unit_parameters.hpp>
#include <keel/shard/parameter_shards.hpp>
#include <keel/shard/shard_parameters.hpp>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// A parameter that shard_parameters() shards, and all that it needs for that.
struct parameter_to_shard {
  std::string name;
  at::Tensor whole;  ///< its elements in memory order: the parameter without its shape
  at::Tensor own;    ///< this rank's of them
  at::Tensor parameter;
  std::unique_ptr<kept_shard> kept;
};

inline std::vector<parameter_to_shard> prepare_to_shard(torch::nn::Module& unit, world_of_ranks const& world) {
  auto const require_no_step = [](torch::nn::Module const& module) {
    if (unit_parameters::of_module(&module) == nullptr) return;
    throw error(
        "E11",
        "a module is sharded by keel::shard_parameters while a step or trainer with keel::shard::zero<3> has its model. "
        "Call it before that is constructed.");
  };
  require_no_step(unit);
  for (auto const& module : unit.modules(/*include_self=*/false)) require_no_step(*module);
  // Divided as if it were the first parameter: the step divides it again if it has another place.
  constexpr std::size_t index = 0;
  std::vector<parameter_to_shard> found;
  std::unordered_set<void const*> seen;
  for (auto const& item : unit.named_parameters()) {
    at::Tensor const& one = item.value();
    // A parameter of two modules may have been sharded with the other one.
    if (unit_parameters::is_freed(one) || !owns_memory(one) || !seen.insert(one.unsafeGetTensorImpl()).second) continue;
    auto const [begin, count] = compute_shard_range(one.numel(), index, world.rank(), world.size());
    at::Tensor const whole = in_memory_order(one.variable_data(), one);
    at::Tensor const shard = at::empty({count}, one.options().requires_grad(false));
    found.push_back({item.key(), whole, whole.narrow(0, begin, count), one,
                     std::make_unique<kept_shard>(kept_shard{shard, &unit, index, world.rank(), world.size()})});
  }
  return found;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY void shard_parameters(torch::nn::Module& unit, world_of_ranks const& world) {
  if (world.size() == 1) return;
  at::NoGradGuard const no_grad;
  auto all = detail::on_all_ranks(world, [&] { return detail::prepare_to_shard(unit, world); });
  std::string lines = "keel::shard_parameters\n";
  for (detail::parameter_to_shard const& one : all)
    lines += one.name + c10::str(" ", one.parameter.scalar_type(), one.parameter.sizes(), one.parameter.strides()) + "\n";
  detail::require_same_lines(world, lines);
  try {
    for (detail::parameter_to_shard& one : all) {
      broadcast(world, one.whole);
      one.kept->values.copy_(one.own);
      one.whole = one.own = at::Tensor();
      detail::unit_parameters::free_memory(one.parameter, one.name, "of its module", {});
      detail::unit_parameters::keep_shard(one.parameter, std::move(one.kept));
    }
  } catch (std::exception const& thrown) {
    // The other ranks may wait in the next broadcast.
    world.abort(first_line(thrown));
    throw;
  }
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
