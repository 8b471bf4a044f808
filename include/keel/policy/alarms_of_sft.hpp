// The alarms of supervised training: each has a symptom, its likely causes and the fixes to try first. Thresholds are those common in
// practice for mean losses over tokens. For a loss of another scale, copy the alarm and change its threshold:
//     struct mine {
//       static constexpr keel::health::alarm configured = [] {
//         auto alarm = keel::health::gradient_norm_spikes::configured;
//         alarm.conditions[0].threshold = 1e4;
//         return alarm;
//       }();
//     };
// A copy with the same name, listed after the set, replaces the original: watch<sft, mine>.
#pragma once

#include <keel/policy/alarm.hpp>

namespace keel::health {

struct loss_spikes {
  static constexpr alarm configured{
      .name = "loss_spikes",
      .conditions = {{"train/loss", is::jumping, 2.0, 64}},
      .severity = severity::warning,
      .symptom = "the loss jumped to twice its usual value or more, and came back",
      .causes = {"one malformed or very long sample", "the learning rate is too high",
                 "the batch is larger than intended: micro-batch times accumulation times ranks",
                 "a low precision loses what matters"},
      .fixes = {"look at the batch of that update", "lower the learning rate by 2 to 5 times, or lengthen the warm-up",
                "keel::spike::skip<>", "keel::precision::fp32, to see whether it goes away"}};
};
struct loss_diverges {
  static constexpr alarm configured{
      .name = "loss_diverges",
      .conditions = {{"smoothed/loss", is::above_lowest, 3.0, 32}, {"train/loss", is::rising, 1.5, 32}},
      .severity = severity::critical,
      .symptom = "the loss is three times its lowest mean, and rises",
      .causes = {"the learning rate is too high", "gradients are not clipped", "a low precision overflows",
                 "the schedule jumped"},
      .fixes = {"options.resume_at, which names an earlier checkpoint, with a lower learning rate",
                "keel::clip::global_norm<1.0>", "a longer warm-up", "keel::precision::bf16 in place of fp16"}};
};
struct loss_drifts_up {
  static constexpr alarm configured{
      .name = "loss_drifts_up",
      .conditions = {{"smoothed/loss", is::above_lowest, 2.0, 256}, {"train/loss", is::rising, 1.2, 256}},
      .severity = severity::warning,
      .symptom = "the loss has risen slowly to twice its lowest mean",
      .causes = {"the learning rate is too high for where the run stands", "the data became harder or its labels wrong",
                 "weights grow: weight decay is off"},
      .fixes = {"a schedule that falls, as keel::schedule::cosine<>", "look at what the data holds since then",
                "weight decay of 0.01 to 0.1"}};
};
struct loss_is_stuck {
  static constexpr alarm configured{
      .name = "loss_is_stuck",
      .conditions = {{"train/loss", is::flat, 0.03, 400}, {"train/loss", is::above_start, 0.95, 400}},
      .severity = severity::warning,
      .symptom = "the loss does not fall, and is near where it began",
      .causes = {"the learning rate is too low: 1e-5 to 5e-5 for a full fine-tune, 1e-4 to 3e-4 with LoRA",
                 "the warm-up is too short: 5 to 10 % of the run", "labels are masked, shifted or shuffled wrongly",
                 "weight decay is too high: above 0.1 it can hold LoRA back", "parameters are frozen, or not in the optimizer"},
      .fixes = {"run.overfit_one_batch: a model that cannot memorise one batch has a bug in model, loss or data",
                "run.lr_range_test, and a rate at which the loss still falls", "look at inputs and labels of one batch",
                "weight decay of 0.01"}};
};
struct loss_is_constant {
  static constexpr alarm configured{
      .name = "loss_is_constant",
      .conditions = {{"train/loss", is::constant, 1e-6, 50},
                     {"train/learning_rate", is::above, 0.0, 1},
                     {"train/loss", is::above_start, 0.1, 50}},
      .severity = severity::critical,
      .symptom = "the loss is the same in every update",
      .causes = {"the model's output does not depend on its input any more, as after dead units",
                 "the loss does not depend on the trained parameters", "every batch is the same, and its gradient is zero"},
      .fixes = {"look at the model's output for two inputs", "run.overfit_one_batch",
                "a lower learning rate from an earlier checkpoint"}};
};
struct loss_oscillates {
  static constexpr alarm configured{
      .name = "loss_oscillates",
      .conditions = {{"train/loss", is::oscillating, 2.0, 50}},
      .severity = severity::warning,
      .symptom = "the loss halves and doubles from one update to the next",
      .causes = {"the learning rate is too high", "the batch is too small", "the momentum is too high",
                 "the data is not shuffled"},
      .fixes = {"lower the learning rate by 3 to 10 times, and warm up", "keel::accumulate<4> or more",
                "keel::schedule::cosine<> in place of steps", "shuffle the data"}};
};
struct gradient_norm_spikes {
  static constexpr alarm configured{
      .name = "gradient_norm_spikes",
      .conditions = {{"train/grad_norm", is::above, 100.0, 1}},
      .severity = severity::warning,
      .symptom = "the gradient norm is above 100",
      .causes = {"the learning rate is too high, or the warm-up too short", "gradients are not clipped", "a bad sample"},
      .fixes = {"keel::clip::global_norm<1.0>", "lower the learning rate by 2 to 5 times", "look at the batch of that update"}};
};
struct gradient_norm_is_high {
  static constexpr alarm configured{
      .name = "gradient_norm_is_high",
      .conditions = {{"train/grad_norm", is::often_above, 10.0, 50}},
      .severity = severity::warning,
      .symptom = "the gradient norm is above 10 in at least half of the updates",
      .causes = {"gradients are not clipped", "the learning rate is too high", "the batch is too small"},
      .fixes = {"keel::clip::global_norm<1.0>", "lower the learning rate",
                "keel::accumulate<4> or more, which averages noise away"}};
};
struct gradient_norm_oscillates {
  static constexpr alarm configured{
      .name = "gradient_norm_oscillates",
      .conditions = {{"train/grad_norm", is::oscillating, 4.0, 50}},
      .severity = severity::warning,
      .symptom = "the gradient norm changes by four times and more from one update to the next",
      .causes = {"the batch is too small", "samples differ too much in length", "the learning rate is too high"},
      .fixes = {"keel::clip::global_norm<1.0>", "keel::accumulate<4> or more", "lower the learning rate"}};
};
struct gradients_vanish {
  static constexpr alarm configured{.name = "gradients_vanish",
                                    .conditions = {{"train/grad_norm", is::below, 0.1, 400},
                                                   {"train/loss", is::flat, 0.03, 400},
                                                   {"train/loss", is::above_start, 0.95, 400}},
                                    .severity = severity::warning,
                                    .symptom = "the gradient norm stays below 0.1 while nothing is learned",
                                    .causes = {"layers saturate: initialisation or a missing normalisation",
                                               "most labels are masked", "the loss is divided twice, as by a mean of a mean"},
                                    .fixes = {"look at the layers' norms in layers.jsonl",
                                              "look at labels and masks of one batch", "check what the loss divides by"}};
};
struct learning_rate_is_zero {
  static constexpr alarm configured{
      .name = "learning_rate_is_zero",
      .conditions = {{"train/learning_rate", is::below, 1e-30, 20}},
      .severity = severity::critical,
      .symptom = "the learning rate has been 0 for 20 updates",
      .causes = {"the schedule ended before the run", "the first parameter group has learning rate 0"},
      .fixes = {"options.updates as the schedule's total", "min_ratio of the schedule above 0"}};
};
struct updates_are_skipped {
  static constexpr alarm configured{
      .name = "updates_are_skipped",
      .conditions = {{"stability/skipped", is::gaining, 10.0, 100}},
      .severity = severity::warning,
      .symptom = "ten of the last hundred updates were skipped",
      .causes = {"the loss scale cannot settle", "bad samples", "the learning rate is too high"},
      .fixes = {"keel::precision::bf16 in place of fp16", "look at the reasons in events.jsonl", "lower the learning rate"}};
};
struct loss_scale_collapses {
  static constexpr alarm configured{
      .name = "loss_scale_collapses",
      .conditions = {{"stability/loss_scale", is::falling, 0.015625, 200}},
      .severity = severity::warning,
      .symptom = "the loss scale fell by 64 times and more",
      .causes = {"gradients overflow in fp16 again and again", "activations grow"},
      .fixes = {"keel::precision::bf16", "keel::clip::global_norm<1.0>", "lower the learning rate"}};
};
struct rollbacks_repeat {
  static constexpr alarm configured{
      .name = "rollbacks_repeat",
      .conditions = {{"stability/rollbacks", is::gaining, 3.0, 1000}},
      .severity = severity::critical,
      .symptom = "the run rolled back three times within a thousand updates",
      .causes = {"the learning rate is too high for where the run stands", "a part of the data is bad"},
      .fixes = {"lower the learning rate", "look at the batches where it rolled back"}};
};
struct overfits {
  static constexpr alarm configured{
      .name = "overfits",
      .conditions = {{"eval/loss", is::above_lowest, 1.05, 3},
                     {"eval/loss", is::rising, 1.02, 4},
                     {"eval/loss_ratio", is::rising, 1.05, 4}},
      .severity = severity::warning,
      .symptom =
          "the evaluation loss rises, also over the training loss, and was 5 % above its best in three evaluations in a row",
      .causes = {"too many epochs for this amount of data", "too little data for this model", "too little regularisation"},
      .fixes = {"keel::evaluation::early_stop, and load_best", "fewer epochs", "weight decay of 0.01 to 0.1, dropout of 0.05",
                "a LoRA rank of 8 to 32"}};
};
struct evaluation_is_far_off {
  static constexpr alarm configured{
      .name = "evaluation_is_far_off",
      .conditions = {{"eval/loss_ratio", is::above, 1.5, 3}, {"eval/loss_ratio", is::rising, 1.2, 8}},
      .severity = severity::warning,
      .symptom = "the evaluation loss is 1.5 times the training loss, and the gap grows",
      .causes = {"the model memorises the training data",
                 "the evaluation's data is of another kind, or is prepared differently"},
      .fixes = {"fewer epochs, or more data", "compare a batch of both", "weight decay or dropout"}};
};
struct waits_for_data {
  static constexpr alarm configured{
      .name = "waits_for_data",
      .conditions = {{"stability/data_wait", is::often_above, 0.3, 50}},
      .severity = severity::notice,
      .symptom = "in at least half of the updates 30 % of the time is waiting for data",
      .causes = {"too few workers prepare batches", "batches are read from a slow disk or network",
                 "in your own loop: what stands between two steps"},
      .fixes = {"more workers of the loader, or batches that are prepared ahead", "pinned memory"}};
};
struct evaluation_is_not_finite {
  static constexpr alarm configured{
      .name = "evaluation_is_not_finite",
      .conditions = {{"eval/loss", is::not_finite, 0.0, 1}},
      .severity = severity::critical,
      .symptom = "the evaluation loss is NaN or infinite",
      .causes = {"the model overflows in its low precision", "the evaluation's data has a bad sample"},
      .fixes = {"evaluate in fp32", "look at the evaluation's batches", "an earlier checkpoint"}};
};
struct loss_rises_in_warmup {
  static constexpr alarm configured{.name = "loss_rises_in_warmup",
                                    .conditions = {{"train/loss", is::rising, 2.0, 32}},
                                    .severity = severity::warning,
                                    .part = part::warmup,
                                    .symptom = "the loss rises during the warm-up",
                                    .causes = {"the highest learning rate is too high", "the warm-up is too short"},
                                    .fixes = {"lower the learning rate by 3 to 10 times", "a warm-up of 5 to 10 % of the run",
                                              "keel::clip::global_norm<1.0>"}};
};
struct gradient_norm_rises_in_warmup {
  static constexpr alarm configured{
      .name = "gradient_norm_rises_in_warmup",
      .conditions = {{"train/grad_norm", is::above, 100.0, 1}, {"train/grad_norm", is::rising, 10.0, 16}},
      .severity = severity::warning,
      .part = part::warmup,
      .symptom = "the gradient norm rises tenfold during the warm-up, to above 100",
      .causes = {"the highest learning rate is too high", "gradients are not clipped"},
      .fixes = {"keel::clip::global_norm<1.0>", "lower the learning rate by 3 to 10 times", "a longer warm-up"}};
};
struct gpu_is_hot {
  static constexpr alarm configured{.name = "gpu_is_hot",
                                    .conditions = {{"gpu/temperature", is::above, 87.0, 20}},
                                    .severity = severity::warning,
                                    .symptom = "the GPU is hotter than 87 degrees, where most of them slow down",
                                    .causes = {"its cooling fails", "the room or the case is too warm"},
                                    .fixes = {"look at its fans and the air around it", "a lower power limit"}};
};

/// The alarms of health::sft.
using alarms_of_sft =
    alarm_list<loss_spikes, loss_diverges, loss_drifts_up, loss_is_stuck, loss_is_constant, loss_oscillates,
               gradient_norm_spikes, gradient_norm_is_high, gradient_norm_oscillates, gradients_vanish, learning_rate_is_zero,
               updates_are_skipped, loss_scale_collapses, rollbacks_repeat, overfits, evaluation_is_far_off,
               evaluation_is_not_finite, waits_for_data, loss_rises_in_warmup, gradient_norm_rises_in_warmup, gpu_is_hot>;

}  // namespace keel::health
