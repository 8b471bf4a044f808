// Rows of the catalogue that no recipe can break in keel, each with the reason: a mechanism that makes it untrue and the test
// that proves it, a policy that keel does not have, or a mechanism that is not there yet. Read by the table of rules and by its
// test, and included by nothing that is compiled into a program.
#pragma once

#include <keel/rule/rule.hpp>

namespace keel::rule {

/// Why a row of the catalogue needs no predicate.
struct settled_row {
  char const* id;
  rule::decided decided;
  char const* passes;  ///< which systems let the combination pass today
  char const* words;
  char const* proof;  ///< the name of a test; only where decided is `never`
};

inline constexpr settled_row settled[] = {
    {"P07", decided::never, "LibTorch, PyTorch, Lightning",
     "an overflow of scaled gradients is the scaler's ordinary signal and no NaN of the run",
     "an overflow of the loss scale is skipped, backs the scale off, and is no non-finite event"},
    {"G10", decided::never, "LibTorch", "keel clips by its own pass and never calls LibTorch's clip_grad_norm_",
     "house.floors"},
    {"N04", decided::never, "LibTorch, KempnerForge", "the gradients are checked in every step, not the loss alone",
     "a finite loss with a non-finite gradient is skipped too, and the parameter is named"},
    {"N05", decided::never, "LibTorch, PyTorch (detect_anomaly), Composer", "the check finds infinities as well as NaN",
     "NaN and infinity are found at every position, and the first tensor is named"},
    {"N07", decided::never, "LibTorch, KempnerForge",
     "a skipped step is an outcome that cadence, record and stop poll see like any other",
     "events come in the documented order: accumulation 1, a skipped update, a checkpoint, two epochs"},
    {"N08", decided::never, "LibTorch, PyTorch (warns), Lightning, KempnerForge", "the schedule advances by applied updates",
     "schedule_advances_by_applied_updates_only, whatever is skipped"},
    {"N14", decided::never, "Composer, torchtitan (logs only)", "the run directory is the one source of a resume",
     "a run that would overwrite another one's directory is refused"},
    {"N20", decided::never, "LibTorch, Megatron-LM", "the reference is a moving window of accepted values",
     "the z-score is the textbook one over the last values only"},
    {"N21", decided::never, "LibTorch, Axolotl", "a hook takes an event of the step and never a line of the record",
     "must_not_compile.calls_of_a_trainer"},
    {"X06", decided::never, "LibTorch, PyTorch, KempnerForge",
     "an update on a device is decided there, and the host reads its numbers one update later",
     "no_host_read_in_the_steady_state: on a device no number is asked for, and LibTorch for none either way"},
    {"A15", decided::never, "LibTorch, PyTorch", "a recomputed block always begins with random state and autocast as they were",
     "recompute_changes_no_bit: gradients and the next random number, with dropout, nested, in bf16, both ways"},
    {"S02", decided::never, "LibTorch, PyTorch",
     "a checkpoint gets its name when all of it is durable, and nothing else points to it",
     "disk_full_in_the_middle_of_a_save: whichever call fails, the error names the file and older checkpoints are whole"},
    {"S03", decided::never, "PyTorch", "saving includes nothing that talks to other ranks", "house.floors"},
    {"S04", decided::never, "LibTorch, PyTorch, torchtitan", "optimizer, schedule and scaler are saved and loaded together",
     "killed_at_every_step: a run stopped after any number of windows and continued has the bits of one that was not"},
    {"S10", decided::never, "LibTorch, PyTorch (equal counts)", "a checkpoint of another set of trained parameters is refused",
     "a checkpoint of another recipe, length, model or optimizer is refused by name, and accepted where that is asked for"},
    {"S20", decided::never, "Composer, torchtitan (logs only)", "a run that begins anew refuses a directory with checkpoints",
     "a run that would overwrite another one's directory is refused"},
    {"S22", decided::never, "LibTorch, PyTorch, torchtitan, Transformers",
     "every save of a trainer looks at the parameters first (N13)",
     "a checkpoint of parameters that are not finite is refused by rule N13, and the one before it stays"},
    {"B02", decided::never, "DeepSpeed (if they agree)", "all three sizes may be declared, and then they must agree (B01)",
     "must_not_compile.B01_global_batch_is_no_product"},
    {"B07", decided::never, "LibTorch, PyTorch, Lightning, Accelerate",
     "a window that the data's end leaves incomplete counts what it holds",
     "a window that the data's end leaves incomplete is applied by flush, weighted by what it holds"},
    {"O04", decided::never, "LibTorch, Composer, Accelerate",
     "a retried window begins with random state, buffers and data where they stood",
     "a retried window draws the same random numbers and sees the same running statistics"},
    {"O12", decided::never, "LibTorch, Accelerate, Composer (warns)", "only what is classified as out of memory is retried",
     "only memory errors count as out of memory"},
    {"O07", decided::never, "LibTorch", "after the first update the ladder passes over rungs that change the experiment",
     "rungs that change the experiment are taken before the first update and never later"},
    {"O14", decided::never, "LibTorch, PyTorch, DeepSpeed (warns)", "an allocator that keeps emptying its cache takes a rung",
     "thrash_takes_a_rung: an allocator that had to try again in three of ten windows, and one that did in two does not"},
    {"L05", decided::never, "Accelerate", "one update advances the schedule by one, whatever the number of ranks",
     "schedule_advances_by_applied_updates_only, whatever is skipped"},
    {"L08", decided::never, "PyTorch, Transformers, torchtitan",
     "a resume with another length of a schedule that depends on it is refused",
     "a checkpoint of another recipe, length, model or optimizer is refused by name, and accepted where that is asked for"},
    {"E01", decided::never, "LibTorch, PyTorch", "evaluation runs without gradients",
     "evaluation builds no graph, moves no random number, and leaves every module's mode as it was"},
    {"E03", decided::never, "LibTorch, PyTorch, Lightning", "a step computes without the cache of cast weights",
     "an evaluation under autocast inside a training step leaves no weight without its gradient"},
    {"H06", decided::never, "LibTorch, Axolotl", "the signal handler sets one lock-free flag",
     "SIGTERM, SIGINT and SIGUSR1 end fit at a step boundary with a checkpoint, and the handlers go back"},
    {"Y03", decided::never, "LibTorch, PyTorch, Composer", "the norm of a step is the one from before clipping",
     "clipping by global norm scales to the limit and reports the norm from before"},
    {"W02", decided::never, "KempnerForge", "a shard policy without a mechanism is refused (U04)",
     "must_not_compile.unbuilt_policies"},
    {"A07", decided::absent, "none known", "keel has no selective recompute", ""},
    {"A10", decided::absent, "PyTorch", "no policy of a recipe moves activations to the host", ""},
    {"A20", decided::absent, "PyTorch", "keel wraps no modules, so there is no order of wrapping", ""},
    {"Z10", decided::absent, "PyTorch", "keel wraps no modules, so no optimizer can be built before its wrapper", ""},
    {"M01", decided::absent, "none known", "a moving average has one unit, the update, and no half-life", ""},
    {"H09", decided::absent, "LibTorch, KempnerForge", "keel has no probe of liveness", ""},
    {"Y05", decided::absent, "LibTorch, PyTorch, Composer", "keel logs no peak of memory", ""},
    {"N17", decided::absent, "none known", "a captured graph is refused by U27", ""},
    {"S06", decided::later, "LibTorch, KempnerForge",
     "waits for runs of several ranks (U04): each will keep its own random state", ""},
    {"S07", decided::later, "none known", "waits for sharding (U04): a checkpoint will say how many ranks wrote it", ""},
    {"G04", decided::later, "PyTorch (FSDP)",
     "waits for sharding (U04): a clamp of each element is the same on a share as on the whole", ""},
};

}  // namespace keel::rule
