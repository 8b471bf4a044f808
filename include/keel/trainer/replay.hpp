// Replays an incident: reruns an update that keel::incident::keep saved, in a trainer with the same recipe, or in the part that made the
// update. The run is unchanged afterwards.
//     keel::replay_result again = run.replay("run/incidents/attempt-000000123", loss_of);   on a CPU, bitwise the same update
//     again = run.replay(path, loss_of, {.fp32 = true});       or without a row of the batch: {.without_rows = {3}}
//     std::puts(run.narrow_down(path, loss_of).table().c_str());   runs each experiment once, and shows which made the update finite
// A batch of your own type must list its fields in `void visit(auto& archive)`; otherwise incidents do not contain it.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/randn_like.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <keel/checkpoint/archive.hpp>
#include <keel/checkpoint/batch_fields.hpp>
#include <keel/step/any_micro_batch.hpp>
#include <keel/step/update_trace.hpp>
#include <keel/trainer/change_batch.hpp>
#include <keel/trainer/dry_run.hpp>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Changes to the replayed update. By default it is repeated unchanged.
struct replay_options {
  bool fp32 = false;               ///< disables autocast
  bool without_recompute = false;  ///< keeps activations instead of recomputing units in the backward pass
  bool math_attention = false;     ///< uses the math implementation in keel::attention
  bool evaluation_mode = false;    ///< sets all models to eval(): no dropout, batch norm with running statistics
  /// Enables LibTorch's anomaly mode: the origin's `detail` then names the backward function that returned NaN.
  bool anomaly_mode = false;
  int threads = 0;                              ///< LibTorch's intra-op threads; 0: as in the incident
  double loss_scale = 0.0;                      ///< 0: as in the incident
  std::int64_t pieces = 0;                      ///< pieces per micro-batch; 0: as in the incident
  std::int64_t micro_batch = -1;                ///< index of the only micro-batch to run; -1: all
  std::vector<std::int64_t> without_rows = {};  ///< rows to omit from each micro-batch that runs, ascending
  bool synthetic = false;  ///< replaces floating-point tensors of the batches with normally distributed numbers
};

/// The result of a replayed update.
struct replay_result {
  nonfinite_origin origin;        ///< nonfinite_place::transient if the update is finite now
  std::vector<double> losses;     ///< one per micro-batch, or per piece, that ran
  bool is_bitwise_equal = false;  ///< losses and gradients are bitwise equal to those that the incident recorded
  /// True if the update is finite now.
  bool is_finite() const { return origin.place == nonfinite_place::transient; }
};

/// The result of one experiment, a replay with one change.
struct narrow_down_row {
  std::string experiment;  ///< the change
  bool is_finite;          ///< true if the change made the update finite
  std::string message;     ///< origin of the non-finite value with this change; empty if finite
};
/// The results of all experiments.
struct narrow_down_result {
  std::vector<narrow_down_row> rows;  ///< one per experiment
  /// The experiments that made the update finite.
  std::vector<std::string> finite_experiments() const;
  /// Formats the results, one line per experiment.
  std::string table() const;
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

template <class Function>
struct argument_of;
template <class Function, class Result, class Argument>
struct argument_of<Result (Function::*)(Argument) const> {
  using type = std::remove_cvref_t<Argument>;
};
template <class Function, class Result, class Argument>
struct argument_of<Result (Function::*)(Argument)> {
  using type = std::remove_cvref_t<Argument>;
};
template <class LossOf>
struct batch_of_loss {
  static_assert(
      requires { &LossOf::operator(); },
      "keel cannot deduce the batch type of this loss function. Fix: name it, as in run.replay<batch_type>(path, loss_of).");
  using type = typename argument_of<decltype(&LossOf::operator())>::type;
};
template <class Result, class Argument>
struct batch_of_loss<Result(Argument)> {
  using type = std::remove_cvref_t<Argument>;
};

/// The facts that an incident records about its update.
struct incident_facts {
  std::size_t micro_batches;
  double loss_scale;
  std::int64_t pieces;
  std::int64_t length;
  int threads;
  std::vector<std::string> losses;  ///< numbers as JSON text
  std::string gradients;
};

/// An incident, loaded into a run until end() or destruction. Use one object per call.
class incident_replay {
 public:
  /// Reads a micro-batch of the incident. `device`: the device that it was on. `synthetic`: as in replay_options.
  using read_batch = std::function<std::unique_ptr<any_micro_batch>(state_reader&, at::Device device, bool synthetic)>;

  /// Loads the incident. The references in `of` must outlive this object. Throws error (E12) while an update is open, and what a resume
  /// throws. Throws checkpoint_error: E05 for a checkpoint that is not an incident, has no batches or is damaged; E03 for an incident of
  /// another part.
  incident_replay(dry_run_subject const& of, std::filesystem::path const& incident, read_batch read);
  incident_replay(incident_replay const&) = delete;
  incident_replay& operator=(incident_replay const&) = delete;
  ~incident_replay();

  replay_result run(replay_options const& options);
  /// Runs every experiment of narrow_down().
  narrow_down_result run_experiments();
  /// Restores the run.
  void end();

 private:
  update_inputs read_batches(replay_options const& options);
  std::vector<std::pair<std::string, replay_options>> list_experiments() const;

  step_engine& step_;
  torch::nn::Module& models_;  ///< all models of the run
  read_batch read_;
  std::string source_;
  std::unique_ptr<snapshot> content_;
  incident_facts facts_;
  std::function<void()> restore_;
};

/// Loads the incident and calls `use(replay)`. Its batches have the type `Batch`; if that is void, the argument type of the loss function.
template <class Batch, class LossOf, class Use>
auto replay_incident(dry_run_subject const& of, std::filesystem::path const& incident, LossOf& loss_of, Use const& use) {
  using batch_type = typename std::conditional_t<std::is_void_v<Batch>, batch_of_loss<std::remove_cvref_t<LossOf>>,
                                                 std::type_identity<Batch>>::type;
  static_assert(writable_batch<batch_type>,
                "keel cannot read this batch type from an incident. Fix: list its fields with `void visit(auto& archive)`.");
  incident_replay again(of, incident, [&](state_reader& fields, at::Device device, bool synthetic) {
    batch_type batch{};
    fields_of_batch(fields, "batch", batch);
    change_batch(batch, [&](at::Tensor const& one) {
      at::Tensor const there = one.to(device);
      return synthetic && at::isFloatingType(one.scalar_type()) ? at::randn_like(there) : there;
    });
    std::int64_t const granularity = granularity_of(batch, update_granularity(of.step.recipe_value()));
    return std::make_unique<typed_micro_batch<batch_type, LossOf&>>(batch, loss_of, granularity);
  });
  auto result = use(again);
  again.end();
  return result;
}

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/replay.ipp>
#endif
