// The forward and backward passes of one window: what they add up, and how all of it is put back to where it began.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <keel/error.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/memory/attention_scope.hpp>
#include <keel/memory/ladder.hpp>
#include <keel/memory/phase_watch.hpp>
#include <keel/memory/unit_scope.hpp>
#include <keel/recipe/config_of.hpp>
#include <keel/step/buffers.hpp>
#include <keel/step/cut_batch.hpp>
#include <keel/step/gradient_versions.hpp>
#include <keel/step/gradients.hpp>
#include <keel/step/loss.hpp>
#include <keel/step/parameters.hpp>
#include <keel/step/window_sums.hpp>
#include <optional>
#include <utility>

namespace keel::detail {

template <class Recipe, class Environment>
class window_pass {
 public:
  static constexpr config configured = config_of<Recipe>;
  static constexpr bool has_ladder = configured.oom.kind == oom::kind::ladder;
  static constexpr bool shortens = oom::has_rung(configured.oom, oom::rung_kind::shorten_sequence);
  static constexpr bool may_recompute =
      configured.recompute.kind != recompute_kind::none || oom::has_rung(configured.oom, oom::rung_kind::enable_recompute);
  static constexpr bool may_fuse =
      configured.attention.kind == attention_kind::fused || oom::has_rung(configured.oom, oom::rung_kind::fused_attention);
  static constexpr std::int64_t grain = window_grain(configured);

  /// Both outlive this.
  window_pass(torch::nn::Module& model, parameter_list const& parameters)
      : parameters_(parameters), versions_(parameters.tensors), buffers_(model), memory_(parameters.tensors.front().device()) {}
  window_pass(window_pass const&) = delete;
  window_pass& operator=(window_pass const&) = delete;

  memory::phase_watch& memory() { return memory_; }
  window_sums const& sums() const { return sums_; }
  buffer_snapshot& buffers() { return buffers_; }
  /// There are gradients to add to.
  bool is_open() const { return gradients_.has_value(); }

  /// `scale` is the loss scale that the host knows, `device_scale` one that only the device does; `on_device`: the host reads
  /// no loss.
  void open(double scale, at::Tensor const& device_scale, bool on_device) {
    on_device_ = on_device;
    buffers_.take();
    if constexpr (has_ladder) random_ = random_snapshot::take(parameters_.device);
    gradients_.emplace(begin_window(parameters_.tensors, scale, device_scale));
  }

  /// Puts everything back to where the window began, and closes it.
  void step_back() {
    clear_gradients(parameters_.tensors);
    if (gradients_) {
      random_.restore();
      buffers_.restore();
    }
    close();
  }
  /// The window's gradients are not used. Batch norm wrote its running statistics in the forward pass: a NaN there would
  /// outlive the batch.
  void leave_out() {
    buffers_.restore();
    clear_gradients(parameters_.tensors);
  }
  /// The gradients stay until the next window begins: freed here, their pages would go back to the system, to be asked for
  /// again.
  void close() {
    gradients_.reset();
    sums_ = {};
  }
  gradients<stage::scaled> complete() { return std::move(*gradients_).complete(); }

  /// Forward and backward of one micro-batch, cut and shortened as `relief` says.
  template <class Batch, class LossOf>
  loss_tally run(Batch const& whole, LossOf& loss_of, memory_relief const& relief) {
    if constexpr (shortens) {
      if (relief.length > 0) return run_pieces(shortened(whole, relief.length), loss_of, relief);
    }
    return run_pieces(whole, loss_of, relief);
  }

 private:
  template <class Batch, class LossOf>
  loss_tally run_pieces(Batch const& batch, LossOf& loss_of, memory_relief const& relief) {
    sums_.rows += batch_traits<Batch>::rows(batch);
    sums_.tokens += batch_traits<Batch>::tokens(batch);
    loss_tally tally;
    for_each_piece(batch, relief.pieces, grain_of(batch, grain),
                   [&](auto const& piece, std::int64_t rows) { run_piece(piece, rows, loss_of, relief, tally); });
    sums_.loss.add(tally);
    return tally;
  }

  template <class Batch, class LossOf>
  void run_piece(Batch const& batch, std::int64_t rows, LossOf& loss_of, memory_relief const& relief, loss_tally& tally) {
    weighted_loss loss;
    versions_.take();
    memory_.enter(memory::phase::forward);
    {
      typename Environment::autocast autocast(parameters_.device, configured.precision.kind);
      unit_scope const units(relief.recompute);
      attention_scope const attention(relief.attention);
      loss = as_weighted_loss(loss_of(batch), rows);
      // Also what only a rung would turn on: better refused now than after a week.
      if constexpr (may_recompute) units.require_any();
      if constexpr (may_fuse) attention.require_any();
    }
    if (auto const changed = versions_.first_changed())
      throw broken_rule<data_error, rule::Z16>(parameters_.names[*changed] + " has a gradient");
    require_trainable(loss);
    memory_.enter(memory::phase::backward);
    if (on_device_) {
      tally.add_on_device(loss.mean.to(parameters_.tensors.front().device()), loss.weight);
      gradients_->add(loss.mean, loss.weight);
      return;
    }
    double const value = Environment::host_value(loss.mean);
    tally.add(value, loss.weight);
    // The update is lost already, so a backward pass over NaN would only cost time.
    if (std::isfinite(value)) gradients_->add(loss.mean, loss.weight);
  }

  parameter_list const& parameters_;
  gradient_versions versions_;
  buffer_snapshot buffers_;
  random_snapshot random_;
  memory::phase_watch memory_;
  bool on_device_ = false;
  std::optional<gradients<stage::scaled, window::partial>> gradients_;
  window_sums sums_;
};

}  // namespace keel::detail
