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
#include <keel/recipe/admitted.hpp>
#include <keel/step/batch.hpp>
#include <keel/step/buffers.hpp>
#include <keel/step/environment.hpp>
#include <keel/step/event.hpp>
#include <keel/step/grad_scaler.hpp>
#include <keel/step/gradient_versions.hpp>
#include <keel/step/gradients.hpp>
#include <keel/step/loss.hpp>
#include <keel/step/lr_schedule.hpp>
#include <keel/step/nonfinite_guard.hpp>
#include <keel/step/parameters.hpp>
#include <keel/step/told_recipe.hpp>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel {

namespace detail {

struct no_observer {
  template <class Event>
  void operator()(Event const& /*event*/) const {}
};

/// A schedule of the user's own, or nothing.
template <class Policy>
std::function<double(std::int64_t, std::int64_t)> factor_of() {
  if constexpr (custom_schedule<Policy>) {
    return [](std::int64_t update, std::int64_t total) { return Policy::factor(update, total); };
  } else {
    return {};
  }
}

/// Only a clip policy's state has a mechanism that creates and saves it.
template <class Recipe, int... Slots>
constexpr bool has_state_outside_clip(std::integer_sequence<int, Slots...>) {
  return ((static_cast<slot>(Slots) != slot::clip && stateful<policy_of<Recipe, static_cast<slot>(Slots)>>) || ...);
}

/// Sums of one micro-batch.
struct loss_tally {
  double sum = 0.0;
  double weight = 0.0;
};

template <class Recipe, class Environment, class Observer = no_observer>
class step_body {
 public:
  static constexpr config configured = config_of<Recipe>;
  using clip_policy = policy_of<Recipe, slot::clip>;
  using schedule_policy = policy_of<Recipe, slot::schedule>;

  /// `updates` is the length of the run for schedules that need one; 0: not known. The model and the optimizer must outlive
  /// the step.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  step_body(Model& model, Optimizer& optimizer, std::int64_t updates = 0, Observer observe = {})
      : model_(as_module(model)),
        optimizer_(optimizer),
        parameters_(collect_parameters(model_, optimizer)),
        told_(std::addressof(model), optimizer, parameters_, updates),
        scaler_(configured.loss_scale),
        schedule_(optimizer, configured.schedule, updates, factor_of<schedule_policy>()),
        buffers_(model_),
        observe_(observe) {
    // Only where a rule of the user's own refused the recipe without an error of the compiler's.
    if constexpr (std::same_as<Recipe, inert>) throw broken_rule<recipe_error, rule::D25>();
    require_types_fit<Recipe, module_of<Model>, Optimizer>();
    if constexpr (clip_policy::configured.kind == clip::kind::custom && !custom_clip<clip_policy> &&
                  !custom_stateful_clip<clip_policy>) {
      refuse_call<rule::U19, clip_policy>();
    }
    if constexpr (schedule_policy::configured.kind == schedule::kind::custom && !custom_schedule<schedule_policy>) {
      refuse_call<rule::U20, schedule_policy>();
    }
    if constexpr (has_state_outside_clip<Recipe>(std::make_integer_sequence<int, slot_count>{}))
      refuse_call<rule::U21, Recipe>();
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
  /// the recipe says. After any exception the window is dropped. Parameters and optimizer state are
  /// as before it, unless the optimizer's own step threw, which the message then says, or an observer of update_end did.
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
      require_rows(batch_traits<Batch>::rows(batch));
      try {
        return take(batch, loss_of);
      } catch (...) {
        drop_window();
        throw;
      }
    }
    return outcome::accumulated{0, configured.accumulate.count};
  }

  /// Applies a window that the data's end left incomplete, weighted by what it holds; nothing if there is none.
  std::optional<outcome> flush() {
    if (!window_) return std::nullopt;
    try {
      return finish();
    } catch (...) {
      drop_window();
      throw;
    }
  }

  std::int64_t updates() const { return updates_; }
  std::int64_t skipped() const { return skipped_; }
  /// Into how many pieces each micro-batch is cut, after rungs that were taken.
  std::int64_t pieces() const { return ladder_.pieces(); }
  double learning_rate() const { return schedule_.rate(); }
  double loss_scale() const { return scaler_.factor(); }
  bool at_boundary() const { return !window_.has_value(); }
  parameter_list const& parameters() const { return parameters_; }
  torch::optim::Optimizer& optimizer() const { return optimizer_; }
  torch::nn::Module& model() const { return model_; }
  run_facts const& facts() const { return told_.run(); }
  /// What the source of the batches says of itself; asked with the first batch.
  void tell(data::settings const& data) { told_.tell(data); }

  /// Everything that a resumed run needs of the step itself, apart from the model and the optimizer.
  template <class Archive>
  void visit(Archive& archive) {
    archive("updates", updates_);
    archive("skipped", skipped_);
    archive("nonfinite", guard_);
    archive("ladder", ladder_);
    archive("scaler", scaler_);
    archive("schedule", schedule_);
    archive("clip", clip_state_);
  }

 private:
  static constexpr bool has_ladder = configured.oom.kind == oom::kind::ladder;

  static void require_rows(std::int64_t rows) {
    if (rows < 1) {
      throw data_error("E06", "a batch has no rows. Leave empty batches out of the data.");
    }
    if (configured.accumulate.micro_batch > 0 && rows > configured.accumulate.micro_batch) {
      throw data_error("B01", "a batch of " + std::to_string(rows) + " rows came to a recipe that declares keel::micro_batch<" +
                                  std::to_string(configured.accumulate.micro_batch) +
                                  ">. Cut the data into batches of that size.");
    }
  }

  template <class Batch, class LossOf>
  outcome take(Batch const& batch, LossOf& loss_of) {
    if (!window_) open_window();
    rows_ += batch_traits<Batch>::rows(batch);
    tokens_ += batch_traits<Batch>::tokens(batch);
    if constexpr (has_ladder) {
      most_rows_ = std::max(most_rows_, batch_traits<Batch>::rows(batch));
      // The window may have to run again from its first micro-batch; a copied batch shares its tensors' memory.
      replay_.push_back([this, batch, loss_of](std::int64_t index) mutable { run(batch, loss_of, index); });
      if (auto gave_up = run_with_ladder()) return *gave_up;
    } else {
      name_out_of_memory("", [&] { run(batch, loss_of, micro_batches_); });
    }
    ++micro_batches_;
    if (micro_batches_ < configured.accumulate.count) return outcome::accumulated{micro_batches_, configured.accumulate.count};
    return finish();
  }

  void open_window() {
    observe_(event::update_begin{updates_});
    name_out_of_memory("", [&] { buffers_.take(); });
    if constexpr (has_ladder) random_ = random_snapshot::take(parameters_.device);
    window_scale_ = scaler_.factor();
    window_.emplace(begin_window(parameters_.tensors, scaler_.factor()));
  }

  void drop_window() {
    clear_gradients(parameters_.tensors);
    window_.reset();
    replay_.clear();
    micro_batches_ = rows_ = tokens_ = most_rows_ = 0;
    loss_sum_ = weight_sum_ = 0.0;
  }

  /// Forward and backward of one micro-batch, in as many pieces as the rungs taken say.
  template <class Batch, class LossOf>
  void run(Batch const& batch, LossOf& loss_of, std::int64_t index) {
    observe_(event::micro_batch_begin{updates_, index});
    loss_tally tally;
    std::int64_t const rows = batch_traits<Batch>::rows(batch);
    std::int64_t const pieces = std::min(ladder_.pieces(), rows);
    if (pieces <= 1) {
      run_piece(batch, rows, loss_of, tally);
    } else if constexpr (sliceable_batch<Batch>) {
      for (std::int64_t piece = 0; piece < pieces; ++piece) {
        std::int64_t const begin = rows * piece / pieces;
        std::int64_t const end = rows * (piece + 1) / pieces;
        run_piece(batch_traits<Batch>::slice(batch, begin, end), end - begin, loss_of, tally);
      }
    }
    loss_sum_ += tally.sum;
    weight_sum_ += tally.weight;
    observe_(event::micro_batch_end{updates_, index, tally.sum / tally.weight, tally.weight});
  }

  template <class Batch, class LossOf>
  void run_piece(Batch const& batch, std::int64_t rows, LossOf& loss_of, loss_tally& tally) {
    weighted_loss loss;
    versions_.take();
    {
      typename Environment::autocast autocast(parameters_.device, configured.precision.kind);
      loss = as_weighted_loss(loss_of(batch), rows);
    }
    if (auto const changed = versions_.first_changed())
      throw broken_rule<data_error, rule::Z16>(parameters_.names[*changed] + " has a gradient");
    require_trainable(loss);
    double const value = loss.mean.template item<double>();
    tally.sum += value * loss.weight;
    tally.weight += loss.weight;
    // The update is lost already, so a backward pass over NaN would only cost time.
    if (std::isfinite(value)) window_->add(loss.mean, loss.weight);
  }

  template <class Run>
  void name_out_of_memory(char const* where, Run&& run_it) {
    try {
      run_it();
    } catch (std::exception const& thrown) {
      if (!is_out_of_memory(thrown)) throw;
      std::string const way_out =
          std::string(where).empty()
              ? "Add keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>, or make the batch smaller."
              : "Start again from the last checkpoint with a smaller batch, or give the process more memory.";
      throw out_of_memory_error("E09", "memory ran out in update " + std::to_string(updates_ + 1) + where + ": " +
                                           first_line(thrown) + ". " + way_out);
    }
  }

  /// Runs what the window has not run yet; after an out-of-memory takes a rung and runs the whole window again.
  std::optional<outcome> run_with_ladder() {
    std::size_t next = replay_.size() - 1;
    while (next < replay_.size()) {
      std::optional<std::string> message;
      try {
        replay_[next](static_cast<std::int64_t>(next));
      } catch (std::exception const& thrown) {
        if (!is_out_of_memory(thrown)) throw;
        message = first_line(thrown);
      }
      // Recovery stands out here because a caught exception may keep frames and tensors alive.
      if (!message) {
        ++next;
      } else if (auto gave_up = climb(*message)) {
        return gave_up;
      } else {
        next = 0;
      }
    }
    return std::nullopt;
  }

  /// Takes the next rung and puts the window back to its beginning; at the last rung drops the window.
  std::optional<outcome> climb(std::string const& message) {
    clear_gradients(parameters_.tensors);
    random_.restore();
    buffers_.restore();
    loss_sum_ = weight_sum_ = 0.0;
    if (ladder_.climb(most_rows_, updates_) == oom::rung_kind::halve_micro_batch) {
      observe_(event::out_of_memory{updates_, "halve_micro_batch", message, ladder_.pieces()});
      window_.emplace(begin_window(parameters_.tensors, scaler_.factor()));
      return std::nullopt;
    }
    observe_(event::out_of_memory{updates_, "give_up", message, ladder_.pieces()});
    drop_window();
    return outcome::gave_up{reason::out_of_memory, message};
  }

  /// A full window must hold the global batch that the recipe declares; only the data's end may leave less.
  void require_declared_batch() const {
    constexpr auto& declared = configured.accumulate;
    if (declared.global_batch == 0 || micro_batches_ < declared.count) return;
    std::int64_t const global = rows_ * told_.run().world_size;
    bool const first = updates_ == 0 && skipped_ == 0;
    if (global > declared.global_batch || (first && global != declared.global_batch)) {
      throw data_error("B01",
                       "an update holds " + std::to_string(global) + " rows in a recipe that declares keel::global_batch<" +
                           std::to_string(declared.global_batch) + ">. Cut the data into batches whose sum is that number.");
    }
  }

  outcome finish() {
    require_declared_batch();
    double const loss = loss_sum_ / weight_sum_;
    if (!std::isfinite(loss)) return skip(reason::nonfinite_loss, "", loss, loss);

    auto unscaled = std::move(*window_).complete().unscale();
    auto result = std::move(unscaled).check();
    if (auto const* found = std::get_if<nonfinite_gradient>(&result)) {
      bool const overflow = configured.loss_scale.kind == loss_scale::kind::dynamic;
      return skip(overflow ? reason::scale_overflow : reason::nonfinite_gradient, parameters_.names[found->parameter], loss,
                  found->norm);
    }
    auto& checked = std::get<gradients<stage::checked>>(result);
    double const norm = checked.norm();
    // Whoever looks at the gradients finds them unscaled; where nobody does, an update engine saves the pass.
    if constexpr (requires { observe_.wants_gradients(); }) {
      if (observe_.wants_gradients()) checked.write();
    } else if constexpr (!std::same_as<Observer, no_observer>) {
      checked.write();
    }
    observe_(event::gradients_ready{updates_, norm, parameters_.tensors});
    auto clipped = std::move(checked).template clip<clip_policy>(clip_state_);
    double const rate = schedule_.rate();
    schedule_.apply(optimizer_);
    name_out_of_memory("", [&] { clipped.prepare(optimizer_); });
    name_out_of_memory(" inside the optimizer's step, so that parameters may be half updated and only a checkpoint is whole",
                       [&] { std::move(clipped).step(optimizer_); });
    scaler_.update(false);
    schedule_.advance();
    guard_.accepted();
    ++updates_;
    return close(outcome::updated{loss, norm, rate}, loss, norm);
  }

  /// The window's update is left out; the policy says whether the run bears it.
  outcome skip(reason why, std::string where, double loss, double norm) {
    ++skipped_;
    clear_gradients(parameters_.tensors);
    // Batch norm wrote its running statistics in the forward pass: a NaN there would outlive the batch.
    buffers_.restore();
    outcome const result = close(outcome::skipped{why, where}, loss, norm);
    if (why == reason::scale_overflow) {
      scaler_.update(true);
    } else {
      guard_.left_out(why, where, updates_ + 1);
    }
    return result;
  }

  outcome close(outcome result, double loss, double norm) {
    // The window is still open: a hook is not at a boundary, where the cursor already counts this window.
    observe_(event::update_end{updates_, result, loss, norm, window_scale_, tokens_, rows_});
    drop_window();
    return result;
  }

  torch::nn::Module& model_;
  torch::optim::Optimizer& optimizer_;
  parameter_list parameters_;
  told_recipe<Recipe, typename Environment::autocast> told_;
  grad_scaler scaler_;
  lr_schedule schedule_;
  state_of<clip_policy> clip_state_{};
  gradient_versions versions_{parameters_.tensors};
  buffer_snapshot buffers_;
  random_snapshot random_;
  nonfinite_guard guard_{configured.nonfinite};
  ladder_position ladder_{configured.oom};
  Observer observe_;

  std::int64_t updates_ = 0;
  std::int64_t skipped_ = 0;

  // The open window. Between windows all of it is empty, which is why a checkpoint is only taken there.
  std::optional<gradients<stage::scaled, window::partial>> window_;
  std::vector<std::function<void(std::int64_t)>> replay_;
  std::int64_t micro_batches_ = 0;
  std::int64_t rows_ = 0;
  std::int64_t tokens_ = 0;
  std::int64_t most_rows_ = 0;
  double loss_sum_ = 0.0;
  double weight_sum_ = 0.0;
  double window_scale_ = 1.0;
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
