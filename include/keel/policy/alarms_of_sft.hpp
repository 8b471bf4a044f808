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
      .symptom = "the loss jumped to twice its usual value or more, and came back",
      .causes = {trouble::bad_sample, trouble::rate_too_high,
                 "the batch is larger than intended: micro-batch times accumulation times ranks", trouble::low_precision}};
};
struct loss_diverges {
  static constexpr alarm configured{
      .name = "loss_diverges",
      .conditions = {{"smoothed/loss", is::above_lowest, 3.0, 32}, {"train/loss", is::rising, 1.5, 32}},
      .severity = severity::critical,
      .symptom = "the loss is three times its lowest mean, and rises",
      .causes = {trouble::rate_too_high,
                 trouble::no_clipping,
                 trouble::low_precision,
                 {"the schedule jumped", "restart from an earlier checkpoint (options.resume_at)"}}};
};
struct loss_drifts_up {
  static constexpr alarm configured{
      .name = "loss_drifts_up",
      .conditions = {{"smoothed/loss", is::above_lowest, 2.0, 256}, {"train/loss", is::rising, 1.2, 256}},
      .symptom = "the loss has risen slowly to twice its lowest mean",
      .causes = {trouble::rate_too_high,
                 {"the data became harder or its labels wrong", "inspect the data since then"},
                 {"weights grow: weight decay is off", "weight decay of 0.01 to 0.1"}}};
};
struct loss_is_stuck {
  static constexpr alarm configured{
      .name = "loss_is_stuck",
      .conditions = {{"train/loss", is::flat, 0.03, 400}, {"train/loss", is::above_start, 0.95, 400}},
      .symptom = "the loss does not fall, and is near where it began",
      .causes = {trouble::rate_too_low, trouble::short_warmup, trouble::wrong_labels, trouble::strong_regularization,
                 trouble::untrained_parameters}};
};
struct loss_is_constant {
  static constexpr alarm configured{
      .name = "loss_is_constant",
      .conditions = {{"train/loss", is::constant, 1e-6, 50},
                     {"train/learning_rate", is::above, 0.0, 1},
                     {"train/loss", is::above_start, 0.1, 50}},
      .severity = severity::critical,
      .symptom = "the loss is the same in every update",
      .causes = {trouble::collapse, trouble::untrained_parameters, "every batch is the same, and its gradient is zero"}};
};
struct loss_oscillates {
  static constexpr alarm configured{.name = "loss_oscillates",
                                    .conditions = {{"train/loss", is::oscillating, 2.0, 50}},
                                    .symptom = "the loss halves and doubles from one update to the next",
                                    .causes = {trouble::oscillation}};
};
struct gradient_norm_spikes {
  static constexpr alarm configured{
      .name = "gradient_norm_spikes",
      .conditions = {{"train/grad_norm", is::above, 100.0, 1}},
      .symptom = "the gradient norm is above 100",
      .causes = {trouble::rate_too_high, trouble::short_warmup, trouble::no_clipping, trouble::bad_sample}};
};
struct gradient_norm_is_high {
  static constexpr alarm configured{
      .name = "gradient_norm_is_high",
      .conditions = {{"train/grad_norm", is::often_above, 10.0, 50}},
      .symptom = "the gradient norm is above 10 in at least half of the updates",
      .causes = {trouble::no_clipping, trouble::rate_too_high, {"the batch is too small", "keel::accumulate<4>"}}};
};
struct gradient_norm_oscillates {
  static constexpr alarm configured{.name = "gradient_norm_oscillates",
                                    .conditions = {{"train/grad_norm", is::oscillating, 4.0, 50}},
                                    .symptom = "the gradient norm changes by four times and more from one update to the next",
                                    .causes = {trouble::oscillation,
                                               {"samples differ too much in length", "batches of rows with similar lengths"},
                                               trouble::no_clipping}};
};
struct gradients_vanish {
  static constexpr alarm configured{
      .name = "gradients_vanish",
      .conditions = {{"train/grad_norm", is::below, 0.1, 400},
                     {"train/loss", is::flat, 0.03, 400},
                     {"train/loss", is::above_start, 0.95, 400}},
      .symptom = "the gradient norm stays below 0.1 while nothing is learned",
      .causes = {trouble::bad_initialization,
                 trouble::wrong_mask,
                 {"the loss is divided twice, as by a mean of a mean", "check what the loss divides by"}}};
};
struct learning_rate_is_zero {
  static constexpr alarm configured{
      .name = "learning_rate_is_zero",
      .conditions = {{"train/learning_rate", is::below, 1e-30, 20}},
      .severity = severity::critical,
      .symptom = "the learning rate has been 0 for 20 updates",
      .causes = {{"the schedule ended before the run",
                  "options.updates as the schedule's total, or a min_ratio of the schedule above 0"},
                 {"the first parameter group has learning rate 0", "the optimizer with a learning rate above 0"}}};
};
struct updates_are_skipped {
  static constexpr alarm configured{.name = "updates_are_skipped",
                                    .conditions = {{"stability/skipped", is::gaining, 10.0, 100}},
                                    .symptom = "ten of the last hundred updates were skipped; events.jsonl has the reasons",
                                    .causes = {trouble::loss_scale, trouble::bad_sample, trouble::rate_too_high}};
};
struct loss_scale_collapses {
  static constexpr alarm configured{.name = "loss_scale_collapses",
                                    .conditions = {{"stability/loss_scale", is::falling, 0.015625, 200}},
                                    .symptom = "the loss scale fell by 64 times and more",
                                    .causes = {trouble::loss_scale, "activations grow"}};
};
struct rollbacks_repeat {
  static constexpr alarm configured{.name = "rollbacks_repeat",
                                    .conditions = {{"stability/rollbacks", is::gaining, 3.0, 1000}},
                                    .severity = severity::critical,
                                    .symptom = "the run rolled back three times within a thousand updates",
                                    .causes = {trouble::rate_too_high, trouble::bad_sample}};
};
struct overfits {
  static constexpr alarm configured{
      .name = "overfits",
      .conditions = {{"eval/loss", is::above_lowest, 1.05, 3},
                     {"eval/loss", is::rising, 1.02, 4},
                     {"eval/loss_ratio", is::rising, 1.05, 4}},
      .symptom =
          "the evaluation loss rises, also over the training loss, and was 5 % above its best in three evaluations in a row",
      .causes = {trouble::overfitting}};
};
struct evaluation_is_far_off {
  static constexpr alarm configured{
      .name = "evaluation_is_far_off",
      .conditions = {{"eval/loss_ratio", is::above, 1.5, 3}, {"eval/loss_ratio", is::rising, 1.2, 8}},
      .symptom = "the evaluation loss is 1.5 times the training loss, and the gap grows",
      .causes = {trouble::overfitting,
                 {"the evaluation's data is of another kind, or is prepared differently", "compare a batch of both"}}};
};
struct waits_for_data {
  static constexpr alarm configured{.name = "waits_for_data",
                                    .conditions = {{"stability/data_wait", is::often_above, 0.3, 50}},
                                    .severity = severity::notice,
                                    .symptom = "in at least half of the updates 30 % of the time is waiting for data",
                                    .causes = {trouble::waiting_for_data, "in your own loop: work between two steps"}};
};
struct evaluation_is_not_finite {
  static constexpr alarm configured{.name = "evaluation_is_not_finite",
                                    .conditions = {{"eval/loss", is::not_finite, 0.0, 1}},
                                    .severity = severity::critical,
                                    .symptom = "the evaluation loss is NaN or infinite",
                                    .causes = {trouble::low_precision, trouble::bad_sample, trouble::blow_up}};
};
struct loss_rises_in_warmup {
  static constexpr alarm configured{.name = "loss_rises_in_warmup",
                                    .conditions = {{"train/loss", is::rising, 2.0, 32}},
                                    .part = part::warmup,
                                    .symptom = "the loss rises during the warm-up",
                                    .causes = {trouble::rate_too_high, trouble::short_warmup}};
};
struct gradient_norm_rises_in_warmup {
  static constexpr alarm configured{
      .name = "gradient_norm_rises_in_warmup",
      .conditions = {{"train/grad_norm", is::above, 100.0, 1}, {"train/grad_norm", is::rising, 10.0, 16}},
      .part = part::warmup,
      .symptom = "the gradient norm rises tenfold during the warm-up, to above 100",
      .causes = {trouble::rate_too_high, trouble::no_clipping, trouble::short_warmup}};
};
struct gpu_is_hot {
  static constexpr alarm configured{.name = "gpu_is_hot",
                                    .conditions = {{"gpu/temperature", is::above, 87.0, 20}},
                                    .symptom = "the GPU is hotter than 87 degrees, where most of them slow down",
                                    .causes = {{"its cooling fails", "look at its fans and the air around it"},
                                               {"the room or the case is too warm", "a lower power limit"}}};
};

/// The alarms of health::sft.
using alarms_of_sft =
    alarm_list<loss_spikes, loss_diverges, loss_drifts_up, loss_is_stuck, loss_is_constant, loss_oscillates,
               gradient_norm_spikes, gradient_norm_is_high, gradient_norm_oscillates, gradients_vanish, learning_rate_is_zero,
               updates_are_skipped, loss_scale_collapses, rollbacks_repeat, overfits, evaluation_is_far_off,
               evaluation_is_not_finite, waits_for_data, loss_rises_in_warmup, gradient_norm_rises_in_warmup, gpu_is_hot>;

}  // namespace keel::health
