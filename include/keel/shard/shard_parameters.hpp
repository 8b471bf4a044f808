// keel::shard_parameters: shards a module as soon as it is built, so that a model can be larger than the memory of one rank. At most one
// module is whole at a time:
//     gpt::gpt(keel::world_of_ranks const& world) {
//       for (int i = 0; i < 96; ++i) {
//         blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<block>()));
//         keel::shard_parameters(*blocks.back(), world);
//       }
//     }
// Train it with keel::shard::zero<3>, which shards the other units at their first call. Without this call a model is built whole on each rank.
// Weights for such a model: options.weights_from reads safetensors files one tensor at a time, and a resume reads slices of a checkpoint.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/nn/module.h>

#include <keel/collective/world_of_ranks.hpp>

namespace keel::inline KEEL_MODE {

/// Keeps this rank's shard of each parameter of `unit`, with rank 0's values, and frees the rest. Call it once `unit` has its weights, dtype
/// and device, and before the optimizer, the step and the trainer are constructed: until then any operation on the parameters throws error
/// (E12). The model must call the module by keel::unit. Parameters whose memory other tensors share, and buffers, stay whole. Collective, with
/// the world that the trainer gets; does nothing if it has one rank. Throws error (E11) if a step or trainer already shards the module, and
/// world_error if the ranks' modules differ or another rank failed; while it allocates, that leaves the module whole.
void shard_parameters(torch::nn::Module& unit, world_of_ranks const& world);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/shard/shard_parameters.ipp>
#endif
