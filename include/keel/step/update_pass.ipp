// Definitions for update_pass.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/gradients/mixed_dtypes.hpp>
#include <keel/nonfinite/nonfinite_pass.hpp>
#include <keel/oom/cut_batch.hpp>
#include <keel/rule/not_implemented.hpp>
#include <keel/step/forward_scope.hpp>
#include <keel/step/update_pass.hpp>
#include <limits>
#include <string>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY update_pass::update_pass(torch::nn::Module& model, parameter_list const& parameters, config const& recipe,
                                   step_environment const& environment)
    : parameters_(parameters),
      environment_(environment),
      precision_(environment.autocast(recipe.precision.kind)),
      has_ladder_(recipe.oom.kind == oom::kind::ladder),
      handles_nonfinite_exceptions_(recipe.nonfinite.exceptions),
      shortens_(oom::has_rung(recipe.oom, oom::rung_kind::shorten_sequence)),
      may_recompute_(recipe.recompute.kind != recompute_kind::none ||
                     oom::has_rung(recipe.oom, oom::rung_kind::enable_recompute)),
      may_fuse_(recipe.attention.kind == attention_kind::fused || oom::has_rung(recipe.oom, oom::rung_kind::fused_attention)),
      granularity_(update_granularity(recipe)),
      may_accumulate_(recipe.accumulate.count > 1),
      is_sum_(recipe.accumulate.sum),
      model_(model),
      versions_(parameters.tensors),
      watch_(parameters),
      buffers_(model),
      memory_(parameters.tensors.front().device()),
      layers_(model, parameters) {}

KEEL_BODY void update_pass::apply_numbers(config const& present) {
  granularity_ = update_granularity(present);
  may_accumulate_ = present.accumulate.count > 1;
}

KEEL_BODY void update_pass::parameters_changed() {
  versions_ = gradient_versions(parameters_.tensors);
  layers_.parameters_changed();
}

KEEL_BODY bool update_pass::has_gradients() const {
  return std::any_of(parameters_.tensors.begin(), parameters_.tensors.end(),
                     [](at::Tensor const& one) { return one.grad().defined(); });
}

KEEL_BODY void update_pass::open(double scale, at::Tensor const& device_scale, bool losses_stay_on_device) {
  losses_stay_on_device_ = losses_stay_on_device;
  buffers_.take();
  if (has_program_state()) saved_copies_ = program_->capture();
  can_restore_ = true;
  if (has_ladder_) random_ = random_snapshot::take(parameters_.device);
  gradients_.emplace(keel::begin_update(parameters_.tensors, scale, device_scale));
}

KEEL_BODY void update_pass::reset_update() {
  phases_.stop();
  clear_gradients(parameters_.tensors);
  if (gradients_) {
    random_.restore();
    restore();
  }
  close();
}

KEEL_BODY void update_pass::drop() {
  phases_.stop();
  layers_.drop();
  if (can_restore_) restore();
}

KEEL_BODY void update_pass::skip() {
  layers_.drop();
  restore();
  clear_gradients(parameters_.tensors);
}

KEEL_BODY void update_pass::close() {
  gradients_.reset();
  watch_.forget();
  can_restore_ = false;
  saved_copies_.clear();
  marks_after_.clear();
  sums_ = {};
  before_backward_ = nullptr;
}

KEEL_BODY gradients<stage::scaled> update_pass::complete(bool has_sent) {
  watch_.require_unchanged();
  if (!has_zero_weight() && !has_sent && !has_gradients()) {
    throw data_error("E07",
                     "the loss does not depend on any parameter of the optimizer, so nothing would be trained. Compute it from "
                     "this model's output, and build the optimizer from this model's parameters.");
  }
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): the update is open
  return std::move(*gradients_).complete();
}

KEEL_BODY loss_accumulator update_pass::run(any_micro_batch& batch, memory_settings const& relief) {
  watch_.require_unchanged();
  // Changes by the program since the previous micro-batch, such as an advanced sampler, are not part of the update.
  if (!marks_after_.empty()) program_->exclude_changes(marks_after_, saved_copies_);
  std::int64_t const rows = batch.rows();
  auto const shorter = length(relief) > 0 ? batch.slice(0, rows, length(relief)) : nullptr;
  any_micro_batch& whole = shorter ? *shorter : batch;
  sums_.rows += rows;
  sums_.tokens += whole.tokens();
  at::ScalarType const dtype = parameters_.tensors.front().scalar_type();
  loss_accumulator tally;
  auto const run_range = [&](std::int64_t begin, std::int64_t end) {
    if (begin > 0 && after_backward_ && has_nonfinite_loss(tally)) return;
    auto const piece = whole.slice(begin, end, 0);
    try {
      run_piece(piece ? *piece : whole, relief, tally);
    } catch (c10::Error const& thrown) {
      rethrow_mixed_dtypes(thrown, whole.floating_dtype_other_than(dtype), dtype);
    }
  };
  if (std::min(relief.pieces, whole.max_pieces()) > 1) {
    for_each_range(rows, relief.pieces, whole.granularity(), run_range);
  } else {
    run_range(0, rows);
  }
  if (tally.weight > 0.0) add_to_sum(tally);
  phases_.stop();
  capture_marks();
  return tally;
}

KEEL_BODY void update_pass::capture_marks() {
  watch_.take(may_accumulate_);
  if (may_accumulate_ && has_program_state()) marks_after_ = program_->capture_marks();
}

KEEL_BODY std::pair<double, double> update_pass::weights_with(double weight) const {
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): the update is open
  return gradients_->weights_with(weight, is_sum_);
}

KEEL_BODY void update_pass::begin_manual_backward() {
  watch_.require_unchanged();
  if (!marks_after_.empty()) program_->exclude_changes(marks_after_, saved_copies_);
  versions_.take();
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): the update is open
  gradients_->begin_manual_backward();
  memory_.enter(memory::phase::forward);
  phases_.enter(run_phase::forward);
}

KEEL_BODY loss_accumulator update_pass::end_manual_backward(weighted_loss const& loss, std::int64_t rows, std::int64_t tokens) {
  sums_.rows += rows;
  sums_.tokens += tokens;
  loss_accumulator tally;
  add_named_losses(loss);
  if (losses_stay_on_device_) {
    tally.add_on_device(loss.mean.to(parameters_.tensors.front().device()), 1.0);
  } else {
    tally.add(environment_.host_value(loss.mean), 1.0);
  }
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): the update is open
  gradients_->end_manual_backward(is_sum_);
  add_to_sum(tally);
  phases_.stop();
  capture_marks();
  return tally;
}

KEEL_BODY void update_pass::restart(double scale) {
  watch_.forget();
  sums_ = {};
  gradients_.emplace(keel::begin_update(parameters_.tensors, scale, {}));
}

KEEL_BODY weighted_loss update_pass::rerun_forward(any_micro_batch& batch, std::int64_t begin, std::int64_t end,
                                                   unit_listener* listener, memory_settings const& relief) const {
  auto const part = batch.slice(begin, end, length(relief));
  forward_scope const scope(parameters_.device, precision_, relief, listener);
  return (part ? *part : batch).loss_of();
}

KEEL_BODY void update_pass::restore() {
  can_restore_ = false;
  buffers_.restore();
  if (has_program_state()) program_->restore(std::exchange(saved_copies_, {}));
}

KEEL_BODY void update_pass::add_named_losses(weighted_loss const& loss) {
  if (loss.parts.empty()) return;
  auto const read = [this](at::Tensor const& one) { return environment_.host_value(one); };
  sums_.named_losses.add(loss, parameters_.tensors.front().device(), losses_stay_on_device_, is_sum_, read);
}

KEEL_BODY bool update_pass::was_nonfinite(any_micro_batch& piece, random_snapshot const& random,
                                          memory_settings const& relief) {
  random.restore();
  return makes_nonfinite_values(model_, parameters_, [&](unit_listener* listener) {
    forward_scope const scope(parameters_.device, precision_, relief, listener);
    static_cast<void>(piece.loss_of());
  });
}

KEEL_BODY std::optional<weighted_loss> update_pass::forward(any_micro_batch& piece, memory_settings const& relief) {
  forward_scope const scope(parameters_.device, precision_, relief, layers_.units());
  weighted_loss loss;
  if (handles_nonfinite_exceptions_) {
    random_snapshot const random = random_snapshot::take(parameters_.device);
    std::optional<std::string> threw;
    std::exception_ptr thrown;
    try {
      loss = piece.loss_of();
    } catch (c10::Error const& error) {
      if (is_out_of_memory(error)) throw;
      threw = first_line(error);
      thrown = std::current_exception();
    }
    // Outside the handler, because a caught exception may keep frames and tensors alive.
    if (threw) {
      if (!was_nonfinite(piece, random, relief)) std::rethrow_exception(thrown);
      if (sums_.exception.empty()) sums_.exception = *threw;
      return std::nullopt;
    }
  } else {
    loss = piece.loss_of();
  }
  // Also check features that only a rung enables: fail now rather than after a week.
  if (may_recompute_) scope.require_units();
  if (may_fuse_) scope.require_attention();
  return loss;
}

KEEL_BODY void update_pass::run_piece(any_micro_batch& piece, memory_settings const& relief, loss_accumulator& tally) {
  versions_.take();
  memory_.enter(memory::phase::forward);
  phases_.enter(run_phase::forward);
  auto const made = forward(piece, relief);
  if (!made) return add_nonfinite(piece.rows(), tally);
  weighted_loss const& loss = *made;
  if (auto const changed = versions_.first_changed())
    throw broken_rule<data_error, rule::Z16>(parameters_.names[*changed] + " has a gradient");
  require_weight(loss.weight);
  // A piece that is all padding contributes nothing; its mean may be NaN or have no graph.
  if (loss.weight == 0.0) return;
  require_trainable(loss);
  memory_.enter(memory::phase::backward);
  phases_.enter(run_phase::backward);
  add_named_losses(loss);
  if (losses_stay_on_device_) {
    tally.add_on_device(loss.mean.to(parameters_.tensors.front().device()), loss.weight);
  } else {
    double const value = environment_.host_value(loss.mean);
    tally.add(value, loss.weight);
    // The update will be skipped, so a backward pass would only cost time.
    if (!std::isfinite(value) || (after_backward_ && has_nonfinite_loss(tally))) return;
  }
  if (before_backward_) std::exchange(before_backward_, nullptr)(tally, loss.weight, loss.mean);
  add_gradients(loss);
  if (after_backward_) after_backward_();
}

KEEL_BODY bool update_pass::has_nonfinite_loss(loss_accumulator const& tally) const {
  return (tally.weight > 0.0 && !std::isfinite(tally.mean())) ||
         (sums_.loss.weight > 0.0 && !sums_.loss.is_on_device() && !std::isfinite(sums_.loss.mean()));
}

KEEL_BODY void update_pass::add_gradients(weighted_loss const& loss) {
  // NOLINTBEGIN(bugprone-unchecked-optional-access): the update is open
  is_sum_ ? gradients_->add_term(loss.mean) : gradients_->add(loss.mean, loss.weight);
  // NOLINTEND(bugprone-unchecked-optional-access)
}

KEEL_BODY void update_pass::add_nonfinite(std::int64_t rows, loss_accumulator& tally) const {
  double const nan = std::numeric_limits<double>::quiet_NaN();
  if (losses_stay_on_device_) {
    auto const options = parameters_.tensors.front().options().dtype(at::kDouble).requires_grad(false);
    tally.add_on_device(at::full({}, nan, options), static_cast<double>(rows));
  } else {
    tally.add(nan, static_cast<double>(rows));
  }
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
