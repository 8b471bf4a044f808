// The events of a step. An event is a plain struct; its references are valid only during the call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <keel/core/outcome.hpp>
#include <keel/memory/phase_watch.hpp>
#include <keel/metrics/layer_record.hpp>
#include <keel/metrics/phase_times.hpp>
#include <keel/step/update_trace.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace keel::event::inline KEEL_MODE {

/// Before the first micro-batch of an update.
struct update_begin {
  std::int64_t update;  ///< updates applied so far
};
/// Before a micro-batch's forward pass.
struct micro_batch_begin {
  std::int64_t update;       ///< updates applied so far
  std::int64_t micro_batch;  ///< from 0, within the update
};
/// After a micro-batch's backward pass.
struct micro_batch_end {
  std::int64_t update;       ///< updates applied so far
  std::int64_t micro_batch;  ///< from 0, within the update
  double loss;               ///< mean over the micro-batch
  double weight;             ///< its weight in the update
};
/// The update's gradients are complete, unscaled and finite, but not clipped. Read them from `parameters[i].grad()`; only a clip policy
/// may change them. Under shard::zero<2> and zero<3> these are this rank's 1-D shards.
struct gradients_ready {
  std::int64_t update;                     ///< updates applied so far
  double norm;                             ///< joint L2 norm
  std::span<at::Tensor const> parameters;  ///< those that the optimizer trains
};
/// The update ended with the outcome `updated` or `skipped`.
struct update_end {
  std::int64_t update;         ///< updates applied so far, this one included
  step_outcome const& result;  ///< the outcome
  double loss;                 ///< weighted mean over the update; NaN or infinite if a micro-batch's was
  double gradient_norm;        ///< before clipping; NaN or infinite if it was not computed
  double loss_scale;           ///< factor on this update's loss
  std::int64_t tokens;         ///< in the update; rows if the batch has no tokens
  std::int64_t rows;           ///< in the update
  /// The device decided; the host read its decision one update later, after the next one's backward pass.
  bool is_deferred = false;
  /// Memory usage of the update; nullopt if memory usage is not tracked (keel/memory/statistics.hpp).
  std::optional<keel::memory::usage> memory = {};
  phase_times times = {};  ///< times since the previous update
  /// Each loss of keel::losses with its name: the mean over the update, without its factor, in the order of first use.
  std::span<std::pair<std::string, double> const> losses = {};
};
/// A non-finite update was traced. It is about to be skipped, or to end the run. Model, optimizer and registered state are as before the
/// update.
struct incident {
  std::int64_t update;       ///< updates applied so far
  reason why;                ///< why the update is skipped
  std::string const& where;  ///< the first parameter with a non-finite gradient, the non-finite buffer or named loss, or empty
  double loss;               ///< loss of the update
  double gradient_norm;      ///< before clipping
  double loss_scale;         ///< factor on the loss
  traced_update const& traced;      ///< where the non-finite value arose
  update_inputs const& inputs;      ///< micro-batches and random state, to rerun the update
  replay_settings const& settings;  ///< settings of the rerun
};
/// Layer statistics of an applied update. On a device this may be emitted some updates later.
struct layers_measured {
  std::int64_t update;         ///< updates applied, the measured one included
  layer_record const& record;  ///< the statistics
};
/// Memory ran out: the ladder took a rung, and the update restarts with its first micro-batch. If no rung is left, `rung` is give_up and
/// the run ends. If `is_allocator_slow`, the rung was taken between updates because the allocator repeatedly freed its cache and retried.
struct out_of_memory {
  std::int64_t update;                               ///< updates applied so far
  std::string rung;                                  ///< the rung taken; give_up if none was left
  std::string message;                               ///< LibTorch's message, one line
  std::int64_t pieces;                               ///< per micro-batch from now on
  bool is_allocator_slow = false;                    ///< memory did not run out, but allocation was slow
  std::optional<keel::memory::shortage> where = {};  ///< where memory ran out; nullopt if memory usage is not tracked
};
/// Enough updates had sufficient memory, so the ladder released the rung that it took last; the next update runs without it.
struct rung_released {
  std::int64_t update;  ///< updates applied so far
  std::string rung;     ///< the rung released
  std::int64_t pieces;  ///< per micro-batch from now on
};

}  // namespace keel::event::inline KEEL_MODE
