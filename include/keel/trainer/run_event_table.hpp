// The events of events.jsonl: one table, from which run_log::emit writes and prints them, and which events.md lists.
#pragma once

#include <keel/libtorch/mode.hpp>
#include <string_view>

namespace keel::inline KEEL_MODE {

/// An event of events.jsonl.
struct logged_event {
  /// How the event is printed on the console: not at all, unchanged, or with the prefix "warning: ".
  enum level { silent, notice, warning };

  char const* name;       ///< the value of `event`
  level on_console;       ///< how it is printed
  char const* text;       ///< the printed line; `{update}` and `{FIELD}` are replaced; empty: only the text passed to emit()
  char const* fields;     ///< fields after `event`, `update` and `time`, as Markdown
  char const* when = "";  ///< what happened; empty: as in `text`

  static logged_event const all[];  ///< the table
};

inline constexpr logged_event logged_event::all[] = {
    {"started", silent, "", "`recipe`: policy of each slot", "a new run began"},
    {"record_set_aside", notice, "the record of an earlier run without checkpoints was moved to {path}", "`path`"},
    {"not_seeded", warning,
     "the model was created before the recipe's seed was set, so its initial parameters differ in each process, unless the "
     "program loads or sets them. Call keel::seed<recipe>() before creating the model",
     "`message`"},
    {"no_fused_attention", notice,
     "this LibTorch has no fused attention kernel; keel::attention uses the math implementation, which needs more memory", ""},
    {"ranks", notice, "training on {ranks} ranks", "`rank`: this rank; `ranks`: number of ranks"},
    {"begins", silent, "",
     "`parameters`, `trained`, `frozen`: numbers of elements; `parameter_bytes`, `trained_bytes`, `optimizer_bytes`; `rates`: "
     "of the groups; `state` after a resume: as in `resumed`; `fingerprints`: from the options",
     "before the first update of a run, and the first update after a resume"},
    {"labels", silent, "",
     "`are`: `classes` or `numbers`; `guess`: loss of a constant prediction, which is the entropy of the class frequencies or "
     "the variance; `labels`: labels read; `in_a_batch`: mean per batch",
     "once, after 40 batches whose labels could be read"},
    {"resumed", silent, "",
     "`state`: checksums of `weights`, `optimizer` and `random` state, `rates`, `seed`, `is_reseeded`; if those in `begins` "
     "differ, the program changed the state in between",
     "a run resumed from its own checkpoint"},
    {"resumed_from", notice, "", "`checkpoint`; `state`: as in `resumed`", "a run began with the checkpoint of another run"},
    {"restarted", notice, "", "`from`: update before the restart; `learning_rate` after it",
     "`options.resume_at` restarted the run"},
    {"migrated", notice, "migrated {checkpoint}: {migration}", "`migration`: its name; `checkpoint`: the one that it changed"},
    {"damaged", notice, "skipped a damaged checkpoint: {message}", "`message`"},
    {"other_ranks", notice, "", "`message`", "the checkpoint was saved with a different number of ranks"},
    {"best_lost", notice, "the best checkpoint (update {update}) no longer exists and is no longer tracked", ""},
    {"skipped", warning, "",
     "`why`; `attempt`: number of this attempt, counting skipped updates; `where`: the first non-finite gradient, loss or "
     "buffer; `origin`: its source",
     "an update was skipped; on the console with `nonfinite::warn`, and in a run of several models"},
    {"part_skipped", warning, "{part} skipped an update: {why}", "`part`, `why`; `origin`: as in `skipped`"},
    {"incident", notice, "",
     "`attempt`, `part`, `why`, `where`, `origin`: as in `skipped`; `words`: the finding; `path` of its files; `bytes`",
     "a non-finite update was traced"},
    {"rolled_back", notice, "rolled back from update {update} to {to} ({change}): {why}",
     "`to`, `change`, `why`; `count`: rollbacks so far"},
    {"batch_finding", warning, "{message}", "`what`; `micro_batch` of the epoch; `row`: the first, or -1; `message`",
     "the batch guard found a problem in a batch"},
    {"partial_update", warning, "", "`micro_batches`: their number; `message`", "`finish()` discarded a partial update"},
    {"numbers_changed", silent, "", "`message`", "`run.change()` changed numbers"},
    {"data_ended", warning,
     "rank {rank} ran out of data; the epoch ends on all ranks, and micro-batches of the incomplete update are discarded",
     "`rank`, `message`"},
    {"evaluated", notice, "", "`name`, if it has one; `values` by name; `loss`", "an evaluation completed"},
    {"alarm", notice, "", "`alarm`: its name; `severity`, `action`, `message`, `causes`, `fixes`; `values` that raised it",
     "an alarm was raised"},
    {"stopped_early", notice, "stopped early at update {update}: {message}", "`message`"},
    {"checkpoint", silent, "", "`bytes`; `stall_ms`: pause of the training; `written_ms`: duration of writing",
     "a checkpoint is durable"},
    {"checkpoint_failed", notice, "could not save the checkpoint at update {update}: {message}", "`message`"},
    {"checkpoint_dropped", notice, "skipped the checkpoint at update {update}: the previous one is still being written", ""},
    {"checkpoint_not_removed", notice, "could not delete an old checkpoint: {message}", "`message`"},
    {"weaker_promise", warning, "{message}", "`message`", "the file system weakens a guarantee"},
    {"lock_retaken", warning, "the file `lock` of the run directory was removed; this run has created it again", ""},
    {"cannot_look", notice, "cannot check for the file `save`: {message}", "`message`"},
    {"grace_too_short", warning, "{message}; save asynchronously, use a faster disk, or request a longer grace period",
     "`message`", "an update and its checkpoint take longer than the grace period after a signal"},
    {"rung", notice, "",
     "`rung`; `pieces` of each micro-batch from now on; `message`; `memory`: sizes in bytes, and the phase (`during`) and "
     "`pieces` of the failed pass; `part`",
     "the ladder took a rung, or had none left (`give_up`)"},
    {"rung_released", notice, "", "`rung`; `pieces`, `part`: as in `rung`", "memory was sufficient for long enough"},
    {"memory_grows", notice, "memory usage keeps growing (noticed at update {update}): {how}", "`how`"},
    {"slowdown", warning, "updates became slower at update {update}: {message}",
     "`before_ms`, `now_ms`: per update; `phase` that became slower, or `none`; `message`"},
    {"straggler", warning, "", "`rank`; `ms`: duration of its update; `others_ms`: median of the others; `message`",
     "a rank is slow"},
    {"profile", notice, "profile: {path}/summary.md", "`path`; `message`: why it was taken", "a profile was written"},
    {"sink_trouble", warning, "{message}", "`message`", "a sink failed"},
    {"no_progress", silent, "", "`message`", "nothing completed for the duration of `timeout::soft`"},
    {"finished", silent, "", "`words`: the outcome; `why` the run ended there", "the run is complete"},
    {"stopped", silent, "", "`words`: the outcome", "a signal or the program stopped the run"},
    {"gave_up", silent, "", "`words`: the outcome", "the policy tolerates no more skipped updates, or no rung is left"},
    {"failed", notice, "the run ends at update {update}: {message}", "`message`; `memory`: as in `rung`",
     "an exception ended the run, or a timeout ended the process ([errors.md](errors.md))"},
};

/// Refers to an event by its name. A name that is not in the table does not compile.
struct logged_event_id {
  consteval logged_event_id(char const* name) {
    while (std::string_view(event->name) != name) ++event;
  }
  logged_event const* event = logged_event::all;  ///< its row
};

}  // namespace keel::inline KEEL_MODE
