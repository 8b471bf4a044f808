// The events of a step. An event is a plain struct; references in it live as long as the call.
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

/// The first micro-batch of a new update has arrived.
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
/// The update's gradients are complete, unscaled and finite; they are not clipped yet. `parameters[i].grad()` may be
/// read; what changes gradients is a clip policy.
struct gradients_ready {
  std::int64_t update;                     ///< updates applied so far
  double norm;                             ///< joint L2 norm
  std::span<at::Tensor const> parameters;  ///< that the optimizer trains
};
/// The update ended: the outcome is `updated` or `skipped`.
struct update_end {
  std::int64_t update;         ///< updates applied so far, this one included
  step_outcome const& result;  ///< the outcome
  double loss;                 ///< weighted mean over the update; NaN or infinite if a micro-batch's was
  double gradient_norm;        ///< before clipping; NaN where it was not reached
  double loss_scale;           ///< factor on this update's loss
  std::int64_t tokens;         ///< of the update, or rows where the batch is not made of tokens
  std::int64_t rows;           ///< of the update
  bool late = false;  ///< decided on a device and read by the host one update later, after the next one's backward pass
  /// What the update took; nothing where memory is not counted (keel/memory/statistics.hpp).
  std::optional<keel::memory::usage> memory = {};
  phase_times times = {};  ///< since the update before
  /// Of keel::losses each by its name, without its factor, as a mean over the update; in the order in which they were named.
  std::span<std::pair<std::string, double> const> losses = {};
};
/// An update that is not finite was looked into, before it is skipped; model, optimizer and registered state are as it found them.
struct incident {
  std::int64_t update;              ///< updates applied so far
  reason why;                       ///< the reason
  std::string const& where;         ///< the first parameter with a gradient that is not finite, or empty
  double loss;                      ///< of the update
  double gradient_norm;             ///< before clipping
  double loss_scale;                ///< factor on the loss
  traced_update const& traced;      ///< where the value came from
  update_inputs const& began_with;  ///< what shows the update again
  replay_settings const& settings;  ///< with which it ran again
};
/// What was found in the layers of an applied update. On a device it may come some updates later.
struct layers_measured {
  std::int64_t update;         ///< updates applied, the measured one included
  layer_record const& record;  ///< what was found
};
/// Memory ran out, and the ladder took a rung; the update begins again with its first micro-batch. Or the allocator lost time
/// in making room, and the rung was taken before an update began.
struct out_of_memory {
  std::int64_t update;                               ///< updates applied so far
  std::string rung;                                  ///< what was done
  std::string message;                               ///< LibTorch's own words, one line
  std::int64_t pieces;                               ///< into which each micro-batch is cut from now on
  bool slow = false;                                 ///< memory did not run out: the allocator lost time in making room
  std::optional<keel::memory::shortage> where = {};  ///< nothing where memory is not counted
};
/// Memory was enough for so long that the ladder released its last rung; the next update runs without it.
struct rung_released {
  std::int64_t update;  ///< updates applied so far
  std::string rung;     ///< that was released
  std::int64_t pieces;  ///< into which each micro-batch is cut from now on
};

}  // namespace keel::event::inline KEEL_MODE
