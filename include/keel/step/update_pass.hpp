// The forward and backward passes of one update: what they add up, and how all of it is put back to where it began.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <keel/attention/attention_scope.hpp>
#include <keel/core/buffers.hpp>
#include <keel/core/error.hpp>
#include <keel/core/loss.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/core/parameters.hpp>
#include <keel/gradients/gradient_versions.hpp>
#include <keel/gradients/interference.hpp>
#include <keel/gradients/mixed_dtypes.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/memory/phase_watch.hpp>
#include <keel/metrics/layer_watch.hpp>
#include <keel/metrics/phase_times.hpp>
#include <keel/nonfinite/nonfinite_pass.hpp>
#include <keel/oom/cut_batch.hpp>
#include <keel/oom/ladder_position.hpp>
#include <keel/recipe/config_of.hpp>
#include <keel/recompute/unit_scope.hpp>
#include <keel/step/gradients.hpp>
#include <keel/step/program_state.hpp>
#include <keel/step/taken_batch.hpp>
#include <keel/step/update_decision.hpp>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

template <class Recipe, class Environment>
class update_pass {
 public:
  static constexpr config configured = kinds_of(config_of<Recipe>);
  static constexpr bool has_ladder = configured.oom.kind == oom::kind::ladder;
  static constexpr bool takes_exceptions = configured.nonfinite.exceptions;
  static constexpr bool shortens = oom::has_rung(configured.oom, oom::rung_kind::shorten_sequence);
  static constexpr bool may_recompute =
      configured.recompute.kind != recompute_kind::none || oom::has_rung(configured.oom, oom::rung_kind::enable_recompute);
  static constexpr bool may_fuse =
      configured.attention.kind == attention_kind::fused || oom::has_rung(configured.oom, oom::rung_kind::fused_attention);

  /// The first two outlive this.
  update_pass(torch::nn::Module& model, parameter_list const& parameters, config const& recipe)
      : parameters_(parameters),
        granularity_(update_granularity(recipe)),
        may_accumulate_(recipe.accumulate.count > 1),
        is_sum_(recipe.accumulate.sum),
        model_(model),
        versions_(parameters.tensors),
        watch_(parameters),
        buffers_(model),
        memory_(parameters.tensors.front().device()),
        layers_(model, parameters) {}
  update_pass(update_pass const&) = delete;
  update_pass& operator=(update_pass const&) = delete;

  /// The program changed numbers. Between updates.
  void take_numbers(config const& present) {
    granularity_ = update_granularity(present);
    may_accumulate_ = present.accumulate.count > 1;
  }
  /// The list of parameters is another one. Between updates.
  void parameters_changed() {
    versions_ = gradient_versions(parameters_.tensors);
    layers_.parameters_changed();
  }

  memory::phase_watch& memory() { return memory_; }
  phase_clock& phases() { return phases_; }
  layer_watch& layers() { return layers_; }
  update_sums const& sums() const { return sums_; }
  /// Rows that are cut together.
  std::int64_t granularity() const { return granularity_; }
  buffer_snapshot& buffers() { return buffers_; }
  /// State of the program that is put back with the buffers; it outlives this.
  void restore_on_skip(program_state& state) { program_ = &state; }
  /// Null for a step without a trainer.
  program_state* registered() const { return program_; }
  bool has_program_state() const { return program_ != nullptr && !program_->empty(); }
  /// There are gradients to add to.
  bool is_open() const { return gradients_.has_value(); }
  /// No micro-batch of the update counted.
  bool has_zero_weight() const { return sums_.loss.weight == 0.0; }
  /// A parameter has one.
  bool has_gradients() const {
    return std::any_of(parameters_.tensors.begin(), parameters_.tensors.end(),
                       [](at::Tensor const& one) { return one.grad().defined(); });
  }

  /// `scale` is the loss scale that the host knows, `device_scale` one that only the device does. Where losses stay on the
  /// device, the backward pass is launched without a look at them: the host would wait for the forward pass, and the device
  /// then for the host.
  void open(double scale, at::Tensor const& device_scale, bool losses_stay_on_device) {
    losses_stay_on_device_ = losses_stay_on_device;
    buffers_.take();
    if (has_program_state()) taken_ = program_->take();
    can_go_back_ = true;
    if constexpr (has_ladder) random_ = random_snapshot::take(parameters_.device);
    gradients_.emplace(keel::begin_update(parameters_.tensors, scale, device_scale));
  }

  /// Puts everything back to where the update began, and closes it.
  void step_back() {
    phases_.stop();
    clear_gradients(parameters_.tensors);
    if (gradients_) {
      random_.restore();
      put_back();
    }
    close();
  }
  /// An exception, or the program, drops the update: of what its forward passes did nothing stays. Not once the optimizer
  /// began to step.
  void drop() {
    phases_.stop();
    layers_.drop();
    if (can_go_back_) put_back();
  }
  /// The update before this one is closed while this one is open, and its hooks may change parameters.
  void before_late_hooks() const { watch_.require_unchanged(); }
  void after_late_hooks() { watch_.take_parameters(); }
  /// The parameters are about to change: from here on nothing can be put back.
  void begin_update() { can_go_back_ = false; }
  /// The update's gradients are not used. Batch norm wrote its running statistics in the forward pass: a NaN there would
  /// outlive the batch.
  void skip() {
    layers_.drop();
    put_back();
    clear_gradients(parameters_.tensors);
  }
  /// The gradients stay until the next update begins: freed here, their pages would go back to the system, to be asked for
  /// again.
  void close() {
    gradients_.reset();
    watch_.forget();
    can_go_back_ = false;
    taken_.clear();
    left_.clear();
    sums_ = {};
    before_backward_ = nullptr;
  }
  /// The update has all of its micro-batches. Throws interference_error (E19) where the program changed a gradient or a
  /// parameter since the last one, data_error (E07) where no parameter has a gradient.
  gradients<stage::scaled> complete() {
    watch_.require_unchanged();
    if (!has_zero_weight() && !has_gradients()) {
      throw data_error(
          "E07",
          "the loss does not depend on any parameter of the optimizer, so nothing would be trained. Compute it from "
          "this model's output, and build the optimizer from this model's parameters.");
    }
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): the update is open
    return std::move(*gradients_).complete();
  }

  /// Forward and backward of one micro-batch, cut and shortened as `relief` says.
  /// Throws interference_error (E19) where the program changed a gradient or a parameter since the micro-batch before.
  template <class Batch, class LossOf>
  loss_accumulator run(Batch const& whole, LossOf& loss_of, memory_settings const& relief) {
    watch_.require_unchanged();
    // What the program changed since the micro-batch before, such as a sampler that moved on, is not part of the update.
    if (!left_.empty()) program_->leave_changes(left_, taken_);
    loss_accumulator const tally = run_shortened(whole, loss_of, relief);
    phases_.stop();
    watch_.take(may_accumulate_);
    if (may_accumulate_ && has_program_state()) left_ = program_->take_marks();
    return tally;
  }

  /// Called once before the backward pass that comes next, with what its micro-batch comes to and the weight of its loss: where the host
  /// knows that it is finite, or does not ask.
  using before_backward = std::function<void(loss_accumulator const&, double)>;
  void tell_before_backward(before_backward call) { before_backward_ = std::move(call); }
  /// Of the open update, with a loss of this weight more: what the micro-batches' weights count in, and their sum in it.
  std::pair<double, double> weights_with(double weight) const {
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): the update is open
    return gradients_->weights_with(weight, is_sum_);
  }

  /// The program runs its own backward passes from here to end_own().
  void begin_own() {
    watch_.require_unchanged();
    if (!left_.empty()) program_->leave_changes(left_, taken_);
    versions_.take();
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): the update is open
    gradients_->begin_term();
    memory_.enter(memory::phase::forward);
    phases_.enter(run_phase::forward);
  }
  /// `loss` is what they went back from, for the record and for whether it is finite.
  loss_accumulator end_own(weighted_loss const& loss, std::int64_t rows, std::int64_t tokens) {
    sums_.rows += rows;
    sums_.tokens += tokens;
    loss_accumulator tally;
    add_parts(loss);
    if (losses_stay_on_device_) {
      tally.add_on_device(loss.mean.to(parameters_.tensors.front().device()), 1.0);
    } else {
      tally.add(Environment::host_value(loss.mean), 1.0);
    }
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): the update is open
    gradients_->end_own(is_sum_);
    add_to_sum(tally);
    phases_.stop();
    watch_.take(may_accumulate_);
    if (may_accumulate_ && has_program_state()) left_ = program_->take_marks();
    return tally;
  }
  /// An optimizer with a closure evaluates the loss once more: the update begins again, with buffers as they are.
  void restart(double scale) {
    watch_.forget();
    sums_ = {};
    gradients_.emplace(keel::begin_update(parameters_.tensors, scale, {}));
  }

  /// The forward pass of rows of a batch that was taken before, as run() does it.
  weighted_loss forward_again(taken_batch& batch, std::int64_t begin, std::int64_t end, unit_listener* listener,
                              memory_settings const& relief) const {
    typename Environment::autocast autocast(parameters_.device, configured.precision.kind);
    unit_scope const units(relief.recompute, listener);
    attention_scope const attention(relief.attention);
    return batch.loss_of(begin, end, shortens ? relief.length : 0);
  }

 private:
  void put_back() {
    can_go_back_ = false;
    buffers_.restore();
    if (has_program_state()) program_->put_back(std::exchange(taken_, {}));
  }

  template <class Batch, class LossOf>
  loss_accumulator run_shortened(Batch const& whole, LossOf& loss_of, memory_settings const& relief) {
    if constexpr (shortens) {
      if (relief.length > 0) return run_pieces(shortened(whole, relief.length), loss_of, relief);
    }
    return run_pieces(whole, loss_of, relief);
  }

  template <class Batch, class LossOf>
  loss_accumulator run_pieces(Batch const& batch, LossOf& loss_of, memory_settings const& relief) {
    sums_.rows += batch_traits<Batch>::rows(batch);
    sums_.tokens += batch_traits<Batch>::tokens(batch);
    loss_accumulator tally;
    for_each_piece(batch, relief.pieces, granularity_of(batch, granularity_), [&](auto const& piece, std::int64_t rows) {
      name_mixed_dtypes(piece, parameters_.tensors.front().scalar_type(),
                        [&] { run_piece(piece, rows, loss_of, relief, tally); });
    });
    if (tally.weight > 0.0) add_to_sum(tally);
    return tally;
  }
  void add_to_sum(loss_accumulator const& tally) { is_sum_ ? sums_.loss.add_term(tally) : sums_.loss.add(tally); }

  void add_parts(weighted_loss const& loss) {
    if (!loss.parts.empty())
      sums_.parts.add(loss, parameters_.tensors.front().device(), losses_stay_on_device_, is_sum_, Environment::host_value);
  }

  /// The loss function threw: true where a forward pass from the same random state has a value that is not finite.
  template <class Batch, class LossOf>
  bool was_nonfinite(Batch const& batch, LossOf& loss_of, random_snapshot const& random, memory_settings const& relief) {
    random.restore();
    return makes_nonfinite_values(model_, parameters_, [&](unit_listener* listener) {
      typename Environment::autocast autocast(parameters_.device, configured.precision.kind);
      unit_scope const units(relief.recompute, listener);
      attention_scope const attention(relief.attention);
      static_cast<void>(loss_of(batch));
    });
  }

  template <class Batch, class LossOf>
  void run_piece(Batch const& batch, std::int64_t rows, LossOf& loss_of, memory_settings const& relief,
                 loss_accumulator& tally) {
    weighted_loss loss;
    versions_.take();
    memory_.enter(memory::phase::forward);
    phases_.enter(run_phase::forward);
    {
      typename Environment::autocast autocast(parameters_.device, configured.precision.kind);
      unit_scope const units(relief.recompute, layers_.units());
      attention_scope const attention(relief.attention);
      if constexpr (takes_exceptions) {
        random_snapshot const random = random_snapshot::take(parameters_.device);
        std::optional<std::string> threw;
        std::exception_ptr thrown;
        try {
          loss = as_weighted_loss(loss_of(batch), rows);
        } catch (c10::Error const& error) {
          if (is_out_of_memory(error)) throw;
          threw = first_line(error);
          thrown = std::current_exception();
        }
        // Not in the handler: a caught exception may keep frames and tensors alive.
        if (threw) {
          if (!was_nonfinite(batch, loss_of, random, relief)) std::rethrow_exception(thrown);
          if (sums_.exception.empty()) sums_.exception = *threw;
          add_nonfinite(rows, tally);
          return;
        }
      } else {
        loss = as_weighted_loss(loss_of(batch), rows);
      }
      // Also what only a rung would turn on: better rejected now than after a week.
      if constexpr (may_recompute) units.require_any();
      if constexpr (may_fuse) attention.require_any();
    }
    if (auto const changed = versions_.first_changed())
      throw broken_rule<data_error, rule::Z16>(parameters_.names[*changed] + " has a gradient");
    require_weight(loss.weight);
    // One that is all padding adds nothing, and may have no mean and no graph.
    if (loss.weight == 0.0) return;
    require_trainable(loss);
    memory_.enter(memory::phase::backward);
    phases_.enter(run_phase::backward);
    // NOLINTBEGIN(bugprone-unchecked-optional-access): the gradients are there, because the update is open
    add_parts(loss);
    if (losses_stay_on_device_) {
      tally.add_on_device(loss.mean.to(parameters_.tensors.front().device()), loss.weight);
      if (before_backward_) std::exchange(before_backward_, nullptr)(tally, loss.weight);
      add_gradients(loss);
      return;
    }
    double const value = Environment::host_value(loss.mean);
    tally.add(value, loss.weight);
    // The update is lost already, so a backward pass over NaN would only cost time.
    if (!std::isfinite(value)) return;
    if (before_backward_) std::exchange(before_backward_, nullptr)(tally, loss.weight);
    add_gradients(loss);
    // NOLINTEND(bugprone-unchecked-optional-access)
  }
  void add_gradients(weighted_loss const& loss) {
    // NOLINTBEGIN(bugprone-unchecked-optional-access): the gradients are there, because the update is open
    is_sum_ ? gradients_->add_term(loss.mean) : gradients_->add(loss.mean, loss.weight);
    // NOLINTEND(bugprone-unchecked-optional-access)
  }
  void add_nonfinite(std::int64_t rows, loss_accumulator& tally) const {
    double const nan = std::numeric_limits<double>::quiet_NaN();
    if (losses_stay_on_device_) {
      auto const options = parameters_.tensors.front().options().dtype(at::kDouble).requires_grad(false);
      tally.add_on_device(at::full({}, nan, options), static_cast<double>(rows));
    } else {
      tally.add(nan, static_cast<double>(rows));
    }
  }

  parameter_list const& parameters_;
  std::int64_t granularity_;
  bool may_accumulate_;  ///< more micro-batches may follow in an update
  bool is_sum_;          ///< of the micro-batches' losses, and not their mean
  torch::nn::Module& model_;
  gradient_versions versions_;
  open_update_watch watch_;
  buffer_snapshot buffers_;
  program_state* program_ = nullptr;
  std::vector<field_copies> taken_;  ///< before the first micro-batch
  std::vector<field_marks> left_;    ///< after the last one
  bool can_go_back_ = false;         ///< an update is open, and nothing of it was applied
  random_snapshot random_;
  memory::phase_watch memory_;
  phase_clock phases_;
  layer_watch layers_;
  bool losses_stay_on_device_ = false;
  before_backward before_backward_;
  std::optional<gradients<stage::scaled, accumulation::partial>> gradients_;
  update_sums sums_;
};

}  // namespace keel::detail::inline KEEL_MODE
