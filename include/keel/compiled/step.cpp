// Compiled definitions of the guarded update.
#include <keel/libtorch/ivalue_first.hpp>

#include <keel/attention/attention.ipp>
#include <keel/batch_guard/batch_watch.ipp>
#include <keel/core/buffers.ipp>
#include <keel/core/loss_accumulator.ipp>
#include <keel/core/out_of_memory.ipp>
#include <keel/core/parameters.ipp>
#include <keel/ema/moving_average.ipp>
#include <keel/gradients/gradient_memory.ipp>
#include <keel/gradients/interference.ipp>
#include <keel/gradients/mixed_dtypes.ipp>
#include <keel/libtorch/compatibility.ipp>
#include <keel/libtorch/ivalue_first.hpp>
#include <keel/lora/lora.ipp>
#include <keel/loss_scale/device_scale.ipp>
#include <keel/memory/recording.ipp>
#include <keel/memory/statistics.ipp>
#include <keel/memory/timeline.ipp>
#include <keel/nonfinite/nonfinite_pass.ipp>
#include <keel/nonfinite/nonfinite_values.ipp>
#include <keel/nonfinite/operation_watch.ipp>
#include <keel/offload/mapped_memory.ipp>
#include <keel/optimizer/parameter_state.ipp>
#include <keel/precision/autocast.ipp>
#include <keel/recompute/recompute.ipp>
#include <keel/recompute/unit_parameters.ipp>
#include <keel/schedule/lr_schedule.ipp>
#include <keel/step/any_micro_batch.ipp>
#include <keel/step/closure_backup.ipp>
#include <keel/step/closure_update.ipp>
#include <keel/step/device_decision.ipp>
#include <keel/step/device_update.ipp>
#include <keel/step/exposed_gradients.ipp>
#include <keel/step/gradients.ipp>
#include <keel/step/host_update.ipp>
#include <keel/step/recipe_context.ipp>
#include <keel/step/replicated_update.ipp>
#include <keel/step/require_valid.hpp>
#include <keel/step/step_engine.ipp>
#include <keel/step/training_mode.ipp>
#include <keel/step/update_decision.ipp>
#include <keel/step/update_parts.ipp>
#include <keel/step/update_pass.ipp>
#include <keel/step/update_replay.ipp>
#include <keel/step/update_trace.ipp>

namespace keel {

template void require_valid<detail::rules_about<recipe<>>>(config const&);
template void require_valid<detail::with_types_of<recipe<>>::rules<void>>(config const&);

}  // namespace keel
