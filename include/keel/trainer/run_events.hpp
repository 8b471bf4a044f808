// The events of a trainer, in their usual order:
//
//     run_begin
//       epoch_begin
//         update_begin
//           micro_batch_begin, micro_batch_end      accumulate<N>: N times
//           gradients_ready                         not in a skipped update
//         incident                                  the cause of a non-finite update was traced
//         update_end
//         layers_measured                           every options.layers_every updates
//         alarm_raised                              an alarm of the recipe; also after evaluated
//         rolled_back                               if the recipe rolls back
//         evaluated                                 one for each evaluation, when the recipe or the program evaluates
//         checkpoint_saved, checkpoint_failed       when a save is due; for an asynchronous save after a later update
//       epoch_end
//     run_end                                       with the outcome
//
// If a device decides whether to apply an update, the host reads the result one update later. The update_end of such an update has
// `is_deferred` set and is emitted during the next update, before that update's gradients_ready, so it may follow the epoch_end of its epoch.
// Until it is emitted, other events count the update as applied. out_of_memory is emitted if memory ran out, before the optimizer step at the
// latest. The update then restarts with micro-batch 0, and gradients_ready may be emitted again. If a rung is taken because the allocator is
// slow, out_of_memory precedes update_begin. rung_released precedes the update_end of the update that completes the required number of
// updates with sufficient memory. An update may span two epochs. Hooks of one event run in the order in which they were added. An exception
// from a hook ends the run like one from the loss function.
#pragma once

#include <boost/hana/tuple.hpp>
#include <boost/hana/type.hpp>
#include <cstdint>
#include <filesystem>
#include <keel/evaluation/evaluate.hpp>
#include <keel/health/alarm_watch.hpp>
#include <keel/policy/nonfinite.hpp>
#include <keel/step/update_events.hpp>
#include <string>

namespace keel::event::inline KEEL_MODE {

/// The run begins or resumes.
struct run_begin {
  std::int64_t update;  ///< 0, or the update of the loaded checkpoint
  bool resumed;         ///< true if a checkpoint was loaded
};
/// An epoch begins, or continues from a checkpoint.
struct epoch_begin {
  std::int64_t epoch;     ///< from 0
  std::int64_t position;  ///< micro-batches of this epoch that were consumed before
};
/// The data of an epoch is exhausted.
struct epoch_end {
  std::int64_t epoch;          ///< from 0
  std::int64_t micro_batches;  ///< number of micro-batches of the epoch
};
/// The checkpoint is durable.
struct checkpoint_saved {
  std::int64_t update;         ///< updates applied when it was saved
  std::filesystem::path path;  ///< its directory
};
/// A save failed; older checkpoints are untouched. After failures<N> consecutive failures the run ends.
struct checkpoint_failed {
  std::int64_t update;  ///< updates applied when the save began
  std::string message;  ///< why it failed
};
/// The run rolled back to an older checkpoint, applied the recipe's change and saved the result. In your own loop, continue the data at
/// trainer::cursor().
struct rolled_back {
  std::int64_t from;         ///< applied updates before the rollback
  std::int64_t to;           ///< applied updates now
  std::int64_t count;        ///< number of rollbacks of this run, this one included
  std::string why;           ///< the reason, as text
  nonfinite::change change;  ///< what was changed
};
/// An alarm of the recipe was raised; the action that the recipe binds to it follows.
struct alarm_raised {
  std::int64_t update;        ///< updates applied
  raised_alarm const& alarm;  ///< the alarm, with the values that raised it
};
/// An evaluation completed; a value without a name is a loss.
struct evaluated {
  std::int64_t update;              ///< updates applied
  std::string const& name;          ///< as passed to evaluate_on; may be empty
  evaluation_result const& result;  ///< its values
};
/// The run ends.
struct run_end {
  outcome const& result;  ///< how it ended
};

/// Every event, as a Boost.Hana tuple of types.
inline constexpr auto all =
    boost::hana::tuple_t<run_begin, epoch_begin, update_begin, micro_batch_begin, micro_batch_end, gradients_ready, incident,
                         update_end, layers_measured, out_of_memory, rung_released, rolled_back, evaluated, alarm_raised,
                         checkpoint_saved, checkpoint_failed, epoch_end, run_end>;

}  // namespace keel::event::inline KEEL_MODE
