// Replays an incident: reruns the update that keel::incident::keep wrote, in a trainer of the same recipe. Leaves the trainer as it was.
//     keel::replay_result again = run.replay("run/incidents/attempt-000000123", loss_of);                 the same bits, on a CPU
//     again = run.replay(path, loss_of, {.fp32 = true});       without the row of the fault: {.without_rows = {3}}
//     std::puts(run.narrow(path, loss_of).table().c_str());    runs each experiment once, and shows which made the update finite
// A batch of your own type must list its fields in `void visit(auto& archive)`; otherwise an incident contains no batch.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/randn_like.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <keel/attention/attention_scope.hpp>
#include <keel/checkpoint/archive.hpp>
#include <keel/checkpoint/batch_fields.hpp>
#include <keel/checkpoint/fields.hpp>
#include <keel/checkpoint/snapshot.hpp>
#include <keel/core/error.hpp>
#include <keel/core/mode_scope.hpp>
#include <keel/recompute/unit_scope.hpp>
#include <keel/rule/reject_call.hpp>
#include <keel/step/any_micro_batch.hpp>
#include <keel/step/update_trace.hpp>
#include <keel/trainer/change_batch.hpp>
#include <keel/trainer/progress.hpp>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Changes to the replayed update. By default it is repeated unchanged.
struct replay_options {
  bool fp32 = false;               ///< without autocast
  bool without_recompute = false;  ///< keeps activations instead of recomputing units in the backward pass
  bool math_attention = false;     ///< without a fused kernel of keel::attention
  bool evaluation_mode = false;    ///< the model in eval(): no dropout, batch norm with running statistics
  bool anomaly_mode = false;       ///< LibTorch's; `detail` of the origin then names the backward function that returned NaN
  int threads = 0;                 ///< LibTorch's intra-op threads; 0: as in the incident
  double loss_scale = 0.0;         ///< 0: as in the incident
  std::int64_t pieces = 0;         ///< pieces per micro-batch; 0: as in the incident
  std::int64_t micro_batch = -1;   ///< index of the only micro-batch to run; -1: all
  std::vector<std::int64_t> without_rows = {};  ///< rows to leave out of each micro-batch that runs, ascending
  bool synthetic = false;  ///< replaces floating-point tensors of the batches by normally distributed numbers
};

/// The result of a replayed update.
struct replay_result {
  nonfinite_origin origin;     ///< nonfinite_place::transient if the update is finite now
  std::vector<double> losses;  ///< one per micro-batch, or per piece, that ran
  bool same_bits = false;      ///< losses and gradients are bitwise equal to those of the trace that the incident recorded
  /// True if the update is finite now.
  bool is_finite() const { return origin.place == nonfinite_place::transient; }
};

/// The result of one experiment, a replay with one change.
struct narrow_row {
  std::string experiment;  ///< the change
  bool is_finite;          ///< true if the change made the update finite
  std::string words;       ///< origin of the non-finite value with this change; empty if finite
};
/// The results of all experiments.
struct narrow_result {
  std::vector<narrow_row> rows;  ///< one per experiment
  /// The experiments that made the update finite.
  std::vector<std::string> cures() const;
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
      "keel cannot see which batches this loss function takes. Fix: say it, as in run.replay<batch_type>(path, loss_of).");
  using type = typename argument_of<decltype(&LossOf::operator())>::type;
};
template <class Result, class Argument>
struct batch_of_loss<Result(Argument)> {
  using type = std::remove_cvref_t<Argument>;
};

/// Reads the checkpoint of an incident. Throws checkpoint_error (E05) if it is damaged.
snapshot read_incident(std::filesystem::path const& incident);

/// The parsed description of an incident. Refers to the JSON that it was parsed from.
struct incident_facts {
  nlohmann::json const* description;
  std::size_t micro_batches;
  double loss_scale;
  std::int64_t pieces;
  std::int64_t length;
  int threads;
  std::vector<std::string> losses;  ///< as JSON
  std::string gradients;
};
/// Throws checkpoint_error (E05) for a checkpoint that is not an incident, or one without its batches.
incident_facts parse_incident(nlohmann::json const& state, std::string const& source);
nlohmann::json const& incident_batch(incident_facts const& facts, std::size_t index);
at::Device batch_device(nlohmann::json const& batch);
bool matches_incident(incident_facts const& facts, traced_update const& traced);

/// RAII: sets LibTorch's thread count and anomaly mode and the model's mode, and restores them on destruction.
class replay_scope {
 public:
  replay_scope(torch::nn::Module& model, int threads, bool anomaly_mode, bool evaluation_mode);
  replay_scope(replay_scope const&) = delete;
  replay_scope& operator=(replay_scope const&) = delete;
  ~replay_scope();

 private:
  mode_scope modes_;
  int threads_;
  bool was_anomaly_;
  bool checked_nan_;
};

/// Loads an incident into a trainer's run until end() or destruction. Use one object per call.
template <class Batch, class LossOf>
class incident_replay {
  using batch_type = typename std::conditional_t<std::is_void_v<Batch>, batch_of_loss<std::remove_cvref_t<LossOf>>,
                                                 std::type_identity<Batch>>::type;
  using restore_run = std::function<void()>;

 public:
  /// Loads the incident. All arguments must outlive this object. Throws error (E12) inside an update, and checkpoint_error.
  template <class Checkpoints>
  incident_replay(step_engine& step, Checkpoints& checkpoints, data_cursor const& cursor, std::filesystem::path const& incident,
                  LossOf& loss_of)
      : step_(step), loss_of_(loss_of), source_(incident.string()) {
    static_assert(writable_batch<batch_type>,
                  "keel cannot read this batch type from an incident. Fix: list its fields with `void visit(auto& archive)`.");
    step_.settle();
    if (!step_.at_boundary())
      throw error("E12", "an update is open. Replay an incident between updates, before fit or after it.");
    content_ = read_incident(incident);
    facts_ = parse_incident(content_.state, source_);
    random_snapshot const random = random_snapshot::take(step_.parameters().device);
    auto buffers = std::make_shared<snapshot_buffers>();
    snapshot const present = buffers->copy(checkpoints.before_update(random, cursor));
    restore_ = [&checkpoints, buffers, present, random] {
      checkpoints.apply_for_replay(present, "this run", /*exactly=*/true);
      random.restore();
    };
    try {
      checkpoints.apply_for_replay(content_, source_, /*exactly=*/false);
    } catch (...) {
      // Restore the run, then rethrow.
      restore_();
      throw;
    }
  }
  incident_replay(incident_replay const&) = delete;
  incident_replay& operator=(incident_replay const&) = delete;
  ~incident_replay() {
    try {
      if (restore_) restore_();
    } catch (std::exception const&) {
      // Only reached while another exception is in flight, which matters more than this one.
    }
  }

  incident_facts const& facts() const { return facts_; }
  /// Restores the run. Returns its argument.
  template <class Result>
  Result end(Result result) {
    std::exchange(restore_, {})();
    return result;
  }

  config const& recipe_value() const { return step_.recipe_value(); }
  replay_result run(replay_options const& options) {
    update_inputs const kept = read_batches(options);
    auto const forward = [&](any_micro_batch& batch, std::int64_t begin, std::int64_t end, unit_listener* units) {
      using keel::precision::kind;
      auto const part = batch.part(begin, end, facts_.length);
      autocast_scope const autocast(
          step_.parameters().device,
          step_.environment().autocast(options.fp32 ? kind::fp32 : step_.recipe_value().precision.kind));
      unit_scope const scope(options.without_recompute ? recompute_kind::none : step_.relief().recompute, units);
      attention_scope const attention(options.math_attention ? attention_kind::math : step_.relief().attention);
      return (part ? *part : batch).loss_of();
    };
    replay_settings settings;
    settings.scale = options.loss_scale > 0.0 ? options.loss_scale : facts_.loss_scale;
    settings.pieces = options.pieces > 0 ? options.pieces : facts_.pieces;
    settings.length = facts_.length;
    settings.without_rows = options.without_rows;
    replay_scope const scope(step_.model(), options.threads > 0 ? options.threads : facts_.threads, options.anomaly_mode,
                             options.evaluation_mode);
    traced_update traced = step_.replay(kept, forward, settings);
    bool const same = matches_incident(facts_, traced);
    return {std::move(traced.origin), std::move(traced.losses), same};
  }

 private:
  update_inputs read_batches(replay_options const& options) {
    update_inputs kept;
    for (std::size_t i = 0; i < facts_.micro_batches; ++i) {
      if (options.micro_batch >= 0 && static_cast<std::size_t>(options.micro_batch) != i) continue;
      nlohmann::json const& values = incident_batch(facts_, i);
      state_reader reader(values, content_.tensors, source_, "incident." + std::to_string(i) + ".");
      batch_type batch{};
      fields_of_batch(reader, "batch", batch);
      random_snapshot random;
      reader("random", random);
      change_batch(batch, [device = batch_device(values)](at::Tensor const& one) { return one.to(device); });
      if (options.synthetic) {
        change_batch(batch,
                     [](at::Tensor const& one) { return at::isFloatingType(one.scalar_type()) ? at::randn_like(one) : one; });
      }
      std::int64_t const granularity = granularity_of(batch, update_granularity(step_.recipe_value()));
      kept.owned.push_back(std::make_unique<typed_micro_batch<batch_type, LossOf&>>(batch, loss_of_, granularity));
      kept.micro_batches.push_back({kept.owned.back().get(), random});
    }
    return kept;
  }

  step_engine& step_;
  LossOf& loss_of_;
  std::string source_;
  snapshot content_;
  incident_facts facts_{};
  restore_run restore_;
};

/// Lists the experiments of narrow(), in the order in which they run.
std::vector<std::pair<std::string, replay_options>> list_experiments(incident_facts const& facts, config const& recipe);
narrow_row row_of(std::string const& experiment, replay_result const& result);

template <class Again>
narrow_result run_experiments(Again& again) {
  narrow_result result;
  for (auto const& [experiment, options] : list_experiments(again.facts(), again.recipe_value()))
    result.rows.push_back(row_of(experiment, again.run(options)));
  return result;
}

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/replay.ipp>
#endif
