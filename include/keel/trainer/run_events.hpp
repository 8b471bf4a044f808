// The events of a trainer, in their usual order:
//
//     run_begin
//       epoch_begin
//         update_begin
//           micro_batch_begin, micro_batch_end      accumulate<N>: N times
//           gradients_ready                         not in a skipped update
//         incident                                  an update that is not finite was looked into
//         update_end
//         layers_measured                           in some updates, as options.layers_every says
//         alarm_raised                              an alarm of the recipe; also after evaluated
//         rolled_back                               where the recipe rolls back
//         evaluated                                 one for each evaluation, when the recipe or the program evaluates
//         checkpoint_saved, checkpoint_failed       when the cadence says so; of an asynchronous save a later update
//       epoch_end
//     run_end                                       with the outcome
//
// An update that is decided on a device is read one later: its update_end comes before the next one's gradients are complete,
// with `late` set, and may come after the end of its epoch. Until then the numbers of other events count it as applied.
// out_of_memory comes where memory ran out, at the latest before the optimizer steps; the update then begins again with micro
// batch 0, and gradients_ready may come again. Taken for time that the allocator loses, it comes before update_begin.
// rung_released comes before the update_end of the update after which memory was enough for so long.
// An update may reach over the end of an epoch. Hooks of one event run in the order in which they were added; an exception
// from a hook ends the run as one from the loss would.
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

/// The run begins or goes on.
struct run_begin {
  std::int64_t update;  ///< 0, or where a checkpoint was resumed
  bool resumed;         ///< from a checkpoint
};
/// An epoch begins, or goes on from a checkpoint.
struct epoch_begin {
  std::int64_t epoch;     ///< from 0
  std::int64_t position;  ///< micro-batches of this epoch that were consumed before a resume
};
/// The data of an epoch has come to its end.
struct epoch_end {
  std::int64_t epoch;          ///< from 0
  std::int64_t micro_batches;  ///< of the epoch
};
/// The checkpoint is durable.
struct checkpoint_saved {
  std::int64_t update;         ///< updates that it holds
  std::filesystem::path path;  ///< its directory
};
/// A save failed; older checkpoints are untouched. After failures<N> consecutive failures the run ends.
struct checkpoint_failed {
  std::int64_t update;  ///< updates that it would have held
  std::string message;  ///< why it failed
};
/// The run rolled back to an older checkpoint, and what the recipe changes is changed and saved. In your own loop the data
/// continues at trainer::cursor().
struct rolled_back {
  std::int64_t from;         ///< updates before
  std::int64_t to;           ///< updates now
  std::int64_t count;        ///< rollbacks of this run, from 1
  std::string why;           ///< the reason, in words
  nonfinite::change change;  ///< what was changed
};
/// An alarm of the recipe is raised; what the recipe binds to it follows.
struct alarm_raised {
  std::int64_t update;        ///< updates applied
  raised_alarm const& alarm;  ///< with the values that raised it
};
/// An evaluation found its values; one without a name is a loss.
struct evaluated {
  std::int64_t update;              ///< updates applied
  std::string const& name;          ///< as evaluate_on was given it; empty where it was given none
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
