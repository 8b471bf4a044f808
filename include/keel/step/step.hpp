// One guarded update, for programs that own their loop:
//
//     keel::step<recipe> step{model, optimizer};
//     for (auto const& batch : batches) keel::outcome outcome = step(batch, loss_of);
//
// With accumulate<N> every Nth call updates. The order of the phases is fixed by the types of gradients.hpp; what each
// phase does is the recipe's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <functional>
#include <keel/error.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/memory/ladder.hpp>
#include <keel/memory/out_of_memory.hpp>
#include <keel/memory/unit.hpp>
#include <keel/recipe/admitted.hpp>
#include <keel/step/batch.hpp>
#include <keel/step/buffers.hpp>
#include <keel/step/declared_batch.hpp>
#include <keel/step/device_scale.hpp>
#include <keel/step/device_update.hpp>
#include <keel/step/environment.hpp>
#include <keel/step/event.hpp>
#include <keel/step/grad_scaler.hpp>
#include <keel/step/gradient_versions.hpp>
#include <keel/step/gradients.hpp>
#include <keel/step/loss.hpp>
#include <keel/step/lr_schedule.hpp>
#include <keel/step/moving_average.hpp>
#include <keel/step/nonfinite_guard.hpp>
#include <keel/step/observer.hpp>
#include <keel/step/own_policies.hpp>
#include <keel/step/parameters.hpp>
#include <keel/step/replay.hpp>
#include <keel/step/spike_guard.hpp>
#include <keel/step/told_recipe.hpp>
#include <keel/step/window_sums.hpp>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel {

namespace detail {

template <class Recipe, class Environment, class Observer = no_observer>
class step_body {
 public:
  static constexpr config configured = config_of<Recipe>;
  static constexpr bool averages = configured.ema.decay > 0.0;
  using clip_policy = policy_of<Recipe, slot::clip>;
  using schedule_policy = policy_of<Recipe, slot::schedule>;

  /// `updates` is the length of the run for schedules that need one; 0: not known. The model and the optimizer must outlive
  /// the step.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  step_body(Model& model, Optimizer& optimizer, std::int64_t updates = 0, Observer observe = {})
      : model_(as_module(model)),
        optimizer_(optimizer),
        engine_(dynamic_cast<update_engine*>(std::addressof(optimizer))),
        parameters_(collect_parameters(model_, optimizer)),
        told_(std::addressof(model), optimizer, parameters_, updates),
        scaler_(configured.loss_scale),
        schedule_(optimizer, configured.schedule, updates, own_schedule<schedule_policy>()),
        buffers_(model_),
        observe_(observe) {
    // Only where a rule of the user's own refused the recipe without an error of the compiler's.
    if constexpr (std::same_as<Recipe, inert>) throw broken_rule<recipe_error, rule::D25>();
    require_types_fit<Recipe, module_of<Model>, Optimizer>();
    require_own_policies_fit<Recipe>();
  }
  /// Refused (Z08): which of the two would be guarded?
  template <class Model, std::derived_from<torch::optim::Optimizer> First, std::derived_from<torch::optim::Optimizer> Second>
  step_body(Model& model, First& first, Second&, std::int64_t = 0, Observer = {}) : step_body(model, first) {
    refuse_call<rule::Z08, First, Second>();
  }
  // The window may be run again by functions that know this object.
  step_body(step_body const&) = delete;
  step_body& operator=(step_body const&) = delete;

  /// Takes one micro-batch. `loss_of(batch)` returns the mean loss as a scalar tensor, or keel::weighted_loss.
  /// Throws data_error for an empty batch or a loss that cannot be trained on, nonfinite_error and out_of_memory_error as
  /// the recipe says, for an update that was decided on a device one call later. After any exception the window is dropped.
  /// Parameters and optimizer state are as before it, unless the optimizer's own step threw, which the message then says.
  /// With a ladder the loss function is copied, so that the window can run again; pass std::ref to one with state of its own.
  template <class Batch, class LossOf>
  outcome operator()(Batch const& batch, LossOf&& loss_of) {
    if constexpr (!countable_batch<Batch>) {
      refuse_call<rule::U14, Batch>();
    } else if constexpr (has_ladder && !sliceable_batch<Batch>) {
      refuse_call<rule::U15, Batch>();
    } else if constexpr (!loss_function<LossOf, Batch>) {
      refuse_call<rule::U16, Batch>();
    } else {
      constexpr bool weighted = std::same_as<std::remove_cvref_t<std::invoke_result_t<LossOf&, Batch const&>>, weighted_loss>;
      require_batch_fits<Recipe, Batch, weighted>();
      told_.template require_data_fits<Batch, weighted>();
      require_declared_rows(configured.accumulate, batch_traits<Batch>::rows(batch));
      try {
        return take(batch, loss_of);
      } catch (...) {
        drop_window();
        throw;
      }
    }
    return outcome::accumulated{0, configured.accumulate.count};
  }

  /// Applies a window that the data's end left incomplete, weighted by what it holds, and settles it; nothing if there is none.
  std::optional<outcome> flush() {
    std::optional<outcome> last;
    if (window_) {
      try {
        last = finish();
      } catch (...) {
        drop_window();
        throw;
      }
    }
    if (auto settled = settle()) last = settled;
    return last;
  }

  /// Waits for an update that is under way on a device; throws as its call would have.
  std::optional<outcome> settle() {
    if (!pending_) return std::nullopt;
    average_.require_parameters_in_place();
    pending_update update = std::move(*pending_);
    pending_.reset();
    raised const closing(closing_);
    return close_pending(std::move(update));
  }
  /// An update is under way on a device, and the counts below are those before it.
  bool is_pending() const { return pending_.has_value(); }
  std::int64_t updates() const { return updates_; }
  std::int64_t skipped() const { return skipped_; }
  /// The share of the applied updates that the clip policy changed; 0 before the first.
  double clip_fraction() const { return updates_ == 0 ? 0.0 : static_cast<double>(clipped_) / static_cast<double>(updates_); }
  /// Into how many pieces each micro-batch is cut, after rungs that were taken.
  std::int64_t pieces() const { return ladder_.pieces(); }
  double learning_rate() const { return schedule_.rate(); }
  double loss_scale() const { return scaler_.factor(); }
  /// Of the parameters, where the recipe has keel::ema.
  moving_average& average() requires(averages) {
    settle();
    return average_;
  }
  bool has_window() const { return window_.has_value(); }
  /// No window is open and no update is being closed: everything that a checkpoint holds belongs together.
  bool at_boundary() const { return !window_.has_value() && !closing_; }
  parameter_list const& parameters() const { return parameters_; }
  torch::optim::Optimizer& optimizer() const { return optimizer_; }
  torch::nn::Module& model() const { return model_; }
  run_facts const& facts() const { return told_.run(); }
  lr_schedule& schedule() { return schedule_; }
  /// What the source of the batches says of itself; asked with the first batch.
  void tell(data::settings const& data) { told_.tell(data); }

  /// Everything that a resumed run needs of the step itself, apart from the model and the optimizer.
  template <class Archive>
  void visit(Archive& archive) {
    settle();
    device_scale_.reset();
    archive("updates", updates_);
    archive("skipped", skipped_);
    archive("clipped", clipped_);
    archive("nonfinite", guard_);
    archive("ladder", ladder_);
    archive("scaler", scaler_);
    archive("schedule", schedule_);
    archive("clip", clip_state_);
    archive("spike", spike_);
    if constexpr (averages) archive("average", average_);
  }

 private:
  static constexpr bool has_ladder = configured.oom.kind == oom::kind::ladder;
  static constexpr reason bad_gradient =
      configured.loss_scale.kind == loss_scale::kind::dynamic ? reason::scale_overflow : reason::nonfinite_gradient;

  template <class Batch, class LossOf>
  outcome take(Batch const& batch, LossOf& loss_of) {
    average_.require_parameters_in_place();
    if (!window_) open_window();
    sums_.rows += batch_traits<Batch>::rows(batch);
    sums_.tokens += batch_traits<Batch>::tokens(batch);
    if constexpr (has_ladder) {
      // The window may have to run again from its first micro-batch; a copied batch shares its tensors' memory.
      replay_.add(batch_traits<Batch>::rows(batch),
                  [this, batch, loss_of](std::int64_t index) mutable { run(batch, loss_of, index); });
      if (auto gave_up = replay_.run_newest([this](std::string const& message) { return climb(message); })) return *gave_up;
    } else {
      name_out_of_memory(begun(), [&] { run(batch, loss_of, sums_.micro_batches); });
    }
    ++sums_.micro_batches;
    if (sums_.micro_batches < configured.accumulate.count) {
      return outcome::accumulated{sums_.micro_batches, configured.accumulate.count};
    }
    return finish();
  }

  void open_window() {
    decides_on_device_ = can_decide_on_device() && !reads_windows(observe_);
    if (!decides_on_device_) settle();
    if (!pending_) average_.begin();
    observe_(event::update_begin{begun()});
    name_out_of_memory(begun(), [&] { buffers_.take(); });
    if constexpr (has_ladder) random_ = random_snapshot::take(parameters_.device);
    begin_gradients();
  }

  void begin_gradients() {
    if (decides_on_device_ && !device_scale_ && configured.loss_scale.kind == loss_scale::kind::dynamic) {
      device_scale_.emplace(configured.loss_scale, scaler_, parameters_.tensors.front().device());
    }
    window_.emplace(decides_on_device_ && device_scale_ ? begin_window(parameters_.tensors, 1.0, device_scale_->factor())
                                                        : begin_window(parameters_.tensors, scaler_.factor()));
  }

  /// The next window drops the gradients: freed here, their pages would go back to the system, to be asked for again.
  void end_window() {
    window_.reset();
    replay_.clear();
    sums_ = {};
  }
  void drop_window() {
    clear_gradients(parameters_.tensors);
    end_window();
  }

  /// Forward and backward of one micro-batch, in as many pieces as the rungs taken say.
  template <class Batch, class LossOf>
  void run(Batch const& batch, LossOf& loss_of, std::int64_t index) {
    observe_(event::micro_batch_begin{begun(), index});
    loss_tally tally;
    for_each_piece(batch, ladder_.pieces(),
                   [&](auto const& piece, std::int64_t rows) { run_piece(piece, rows, loss_of, tally); });
    sums_.loss.add(tally);
    observe_(event::micro_batch_end{begun(), index, tally.mean(), tally.weight});
  }

  template <class Batch, class LossOf>
  void run_piece(Batch const& batch, std::int64_t rows, LossOf& loss_of, loss_tally& tally) {
    weighted_loss loss;
    versions_.take();
    {
      typename Environment::autocast autocast(parameters_.device, configured.precision.kind);
      unit_scope const units(ladder_.recompute());
      loss = as_weighted_loss(loss_of(batch), rows);
      units.require_any();
    }
    if (auto const changed = versions_.first_changed())
      throw broken_rule<data_error, rule::Z16>(parameters_.names[*changed] + " has a gradient");
    require_trainable(loss);
    if (decides_on_device_) {
      tally.add_on_device(loss.mean.to(parameters_.tensors.front().device()), loss.weight);
      window_->add(loss.mean, loss.weight);
      return;
    }
    double const value = Environment::host_value(loss.mean);
    tally.add(value, loss.weight);
    // The update is lost already, so a backward pass over NaN would only cost time.
    if (std::isfinite(value)) window_->add(loss.mean, loss.weight);
  }

  /// Takes the next rung and puts the window back to its beginning; at the last rung drops the window.
  std::optional<outcome> climb(std::string const& message) {
    clear_gradients(parameters_.tensors);
    random_.restore();
    buffers_.restore();
    sums_.loss = {};
    auto const rung = ladder_.climb(replay_.most_rows(), begun());
    observe_(event::out_of_memory{begun(), to_string(rung), message, ladder_.pieces()});
    if (rung != oom::rung_kind::give_up) {
      begin_gradients();
      return std::nullopt;
    }
    drop_window();
    return outcome::gave_up{reason::out_of_memory, message};
  }

  outcome finish() {
    average_.require_parameters_in_place();
    bool const first = updates_ == 0 && skipped_ == 0 && !pending_;
    require_declared_window(configured.accumulate, sums_.micro_batches, sums_.rows * told_.run().world_size, first);
    if (decides_on_device_) return finish_on_device();
    window_facts const window{scaler_.factor(), schedule_.rate(), sums_.tokens, sums_.rows};
    double const loss = sums_.loss.mean();
    auto const leave_out = [&](reason why, std::string where, double norm) {
      // Batch norm wrote its running statistics in the forward pass: a NaN there would outlive the batch.
      buffers_.restore();
      clear_gradients(parameters_.tensors);
      return skip(window, why, std::move(where), loss, norm);
    };
    if (!std::isfinite(loss)) return leave_out(reason::nonfinite_loss, "", loss);

    auto unscaled = std::move(*window_).complete().unscale();
    auto result = std::move(unscaled).check();
    if (auto const* found = std::get_if<nonfinite_gradient>(&result)) {
      return leave_out(bad_gradient, parameters_.names[found->parameter], found->norm);
    }
    auto& checked = std::get<gradients<stage::checked>>(result);
    double const norm = checked.norm();
    if (!std::isfinite(norm)) return leave_out(bad_gradient, "", norm);
    if (auto const spike = spike_.judge(loss, norm)) return leave_out(*spike, "", norm);
    // Whoever looks at the gradients finds them unscaled; where nobody does, an update engine saves the pass.
    if (reads_windows(observe_)) checked.write();
    observe_(event::gradients_ready{updates_, norm, parameters_.tensors});
    auto clipped = std::move(checked).template clip<clip_policy>(clip_state_);
    bool const was_clipped = clipped.clipped();
    schedule_.apply(optimizer_);
    name_out_of_memory(updates_, [&] { clipped.prepare(optimizer_); });
    name_out_of_memory_inside_update(updates_, [&] { std::move(clipped).step(optimizer_); });
    return accept(window, loss, norm, was_clipped);
  }

  /// Launches the update and says what became of the one before it.
  outcome finish_on_device() {
    outcome const before = settle().value_or(outcome::pending{});
    window_facts const window{scaler_.factor(), schedule_.rate(), sums_.tokens, sums_.rows, true};
    update_limits const limits{spike_.loss_limit(), spike_.gradient_norm_limit(), norm_limit<clip_policy>(clip_state_)};
    schedule_.apply(optimizer_);
    name_out_of_memory(updates_, [&] { engine_->prepare(); });
    auto unscaled = std::move(*window_).complete().unscale();
    name_out_of_memory_inside_update(updates_, [&] {
      auto launched = update_on_device(std::move(unscaled), *engine_, sums_.loss.mean_on_device(), limits);
      if (device_scale_) device_scale_->update(launched.happens, launched.overflowed);
      buffers_.restore_unless(launched.happens);
      pending_.emplace(pending_update{window, limits, std::move(launched.verdict)});
    });
    end_window();
    return before;
  }

  /// Updates that were applied, and the one that is under way.
  std::int64_t begun() const { return updates_ + (pending_ ? 1 : 0); }

  /// Everything that follows an update that took place.
  outcome accept(window_facts const& window, double loss, double norm, bool clipped) {
    outcome const result = outcome::updated{loss, norm, window.learning_rate, clipped};
    scaler_.update(false);
    schedule_.advance(result);
    guard_.accepted();
    spike_.accepted(result);
    if constexpr (clip_policy::configured.kind == clip::kind::zscore) clip_state_.accepted(result);
    name_out_of_memory_inside_update(updates_, [&] { average_.update(result); });
    ++updates_;
    if (clipped) ++clipped_;
    return close(window, result, loss, norm);
  }

  /// The update was left out; the policy says whether the run bears it.
  outcome skip(window_facts const& window, reason why, std::string where, double loss, double norm) {
    ++skipped_;
    outcome const result = close(window, outcome::skipped{why, where}, loss, norm);
    if (why == reason::scale_overflow) {
      scaler_.update(true);
    } else if (why == reason::loss_spike || why == reason::gradient_spike) {
      spike_.left_out(why, why == reason::loss_spike ? loss : norm, updates_ + 1);
    } else {
      guard_.left_out(why, where, updates_ + 1);
    }
    return result;
  }

  outcome close(window_facts const& window, outcome result, double loss, double norm) {
    // The window is still open: a hook is not at a boundary, where the cursor already counts this window.
    observe_(event::update_end{updates_, result, loss, norm, window.loss_scale, window.tokens, window.rows, window.late});
    if (!decides_on_device_) end_window();
    return result;
  }

  /// The device's verdicts are the host's, one update later: the same numbers take the same branches.
  outcome close_pending(pending_update update) {
    auto const [loss, norm, applied] = update.verdict.read();
    if (applied) return accept(update.window, loss, norm, norm > update.limits.clip);
    engine_->take_back();
    if (!std::isfinite(loss)) return skip(update.window, reason::nonfinite_loss, "", loss, loss);
    if (!std::isfinite(norm)) {
      auto const found = update.verdict.first_nonfinite();
      return skip(update.window, bad_gradient, found ? parameters_.names[*found] : "", loss, norm);
    }
    reason const why = loss > update.limits.loss ? reason::loss_spike : reason::gradient_spike;
    return skip(update.window, why, "", loss, norm);
  }

  bool can_decide_on_device() const {
    if constexpr (looks_at_elements<clip_policy>) return false;
    return engine_ != nullptr && parameters_.one_device && Environment::decides_on_device(parameters_.device);
  }

  torch::nn::Module& model_;
  torch::optim::Optimizer& optimizer_;
  update_engine* engine_;  ///< the optimizer, if it is one
  parameter_list parameters_;
  told_recipe<Recipe, typename Environment::autocast> told_;
  grad_scaler scaler_;
  lr_schedule schedule_;
  state_of<clip_policy> clip_state_{};
  gradient_versions versions_{parameters_.tensors};
  buffer_snapshot buffers_;
  random_snapshot random_;
  nonfinite_guard guard_{configured.nonfinite};
  spike_guard spike_{configured.spike};
  ladder_position ladder_{configured.oom, configured.recompute.kind};
  average_if<averages> average_{parameters_.tensors, configured.ema.decay, parameters_.names};
  Observer observe_;

  std::int64_t updates_ = 0, skipped_ = 0, clipped_ = 0;

  // The open window. Between windows all of it is empty, which is why a checkpoint is only taken there.
  std::optional<gradients<stage::scaled, window::partial>> window_;
  window_replay replay_;
  window_sums sums_;

  // Of updates that are decided on the device: the one that the host has not read, and the scale that it does not know yet.
  bool decides_on_device_ = false;
  bool closing_ = false;
  std::optional<pending_update> pending_;
  std::optional<device_scale> device_scale_;
};

template <class Environment>
struct step_box {
  template <class Recipe>
  using body = step_body<Recipe, Environment>;
};

using step_unbuilt = typename rule::detail::joined<rule::unbuilt_rules, rule::trainer_only_rules>::type;

}  // namespace detail

/// The guarded update of a recipe; see step_body's members. A refused recipe is a compile error, one a broken rule.
template <class Recipe, class Environment = step_environment>
class step : public detail::admitted<Recipe, detail::step_unbuilt, detail::step_box<Environment>> {
  using base = detail::admitted<Recipe, detail::step_unbuilt, detail::step_box<Environment>>;

 public:
  using base::base;
};

}  // namespace keel
