// Definitions for shard_parameters.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <keel/collective/collectives.hpp>
#include <keel/recompute/unit_parameters.hpp>
#include <keel/shard/parameter_shards.hpp>
#include <keel/shard/shard_parameters.hpp>
#include <string>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY void shard_parameters(torch::nn::Module& unit, world_of_ranks const& world) {
  if (world.size() == 1) return;
  at::NoGradGuard const no_grad;
  struct one_parameter {
    std::string name;
    at::Tensor whole, shard;
    detail::element_range range;
  };
  // Divided as the model's list of parameters is not known yet; the step divides them again if their places differ.
  constexpr std::size_t index = 0;
  std::vector<one_parameter> const all = detail::on_all_ranks(world, [&] {
    std::vector<one_parameter> found;
    for (auto const& item : unit.named_parameters()) {
      at::Tensor const& one = item.value();
      // A parameter of two modules may have been sharded with the other one.
      if (detail::unit_parameters::is_freed(one) || !detail::owns_memory(one)) continue;
      detail::element_range const range = detail::compute_shard_range(one.numel(), index, world.rank(), world.size());
      found.push_back({item.key(), one, at::empty({range.count}, one.options().requires_grad(false)), range});
    }
    return found;
  });
  std::string lines = "keel::shard_parameters\n";
  for (one_parameter const& one : all)
    lines += one.name + " " + c10::toString(one.whole.scalar_type()) + c10::str(one.whole.sizes()) + "\n";
  detail::require_same_lines(world, lines);
  for (one_parameter const& one : all) {
    broadcast(world, one.whole);
    at::Tensor const whole = one.whole.variable_data();
    one.shard.copy_(detail::in_memory_order(whole, whole).narrow(0, one.range.begin, one.range.count));
    detail::unit_parameters::free_memory(one.whole, one.name, "of its module", {});
    detail::unit_parameters::keep_shard(one.whole, {one.shard, &unit, index, world.rank(), world.size()});
  }
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
