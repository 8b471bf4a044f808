// The loop of a trainer over the micro-batches of one model, independent of the recipe's type. keel::trainer is its typed interface.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <exception>
#include <keel/core/outcome.hpp>
#include <keel/step/manual_backward.hpp>
#include <keel/step/step_engine.hpp>
#include <keel/trainer/run_loop.hpp>
#include <keel/trainer/training_data.hpp>
#include <optional>
#include <type_traits>

namespace keel::detail::inline KEEL_MODE {

class trainer_loop final : public run_loop, private step_observer, private manual_backward_owner {
 public:
  /// Collective over the step's world. All arguments must outlive this object. Throws what the constructor of run_loop throws.
  trainer_loop(step_engine& step, trained_models& models, trainer_options& options, run_alarms const& alarms,
               environment const& machine);
  ~trainer_loop() override = default;

  outcome fit(training_data& data);

  /// The rows and tokens of a micro-batch.
  struct batch_size {
    std::int64_t rows;
    std::int64_t tokens;
  };
  /// Trains on one micro-batch in fit(). `size`: nullopt if it cannot be counted. `contents` returns the tensors of the batch. `run`
  /// validates the batch and calls the step.
  step_outcome take(std::optional<batch_size> const& size, c10::function_ref<batch_contents()> contents,
                    c10::function_ref<step_outcome()> run);
  /// `run` validates a batch before training. If it throws, the open update is discarded on all ranks.
  void check_batch(c10::function_ref<void()> run);
  /// `call` is a call of the step in a program's own loop.
  step_outcome step_in_own_loop(c10::function_ref<step_outcome()> call);
  manual_backward open_manual_backward(std::int64_t rows, std::int64_t tokens);
  std::optional<step_outcome> flush();
  /// `signal()` returns the signal that requests a stop, or 0.
  bool should_stop(c10::function_ref<int()> signal) const;
  void end_epoch();
  outcome finish(int signal);
  void change(c10::function_ref<void()> change_numbers);

  /// Length of the run in updates. A length given in epochs is exact only while the number of updates per epoch does not change.
  std::int64_t length() const override;
  bool is_length_pending() const { return step_.facts().is_length_pending; }
  /// Throws recipe_error (L04) if the schedule needs a length and neither the options nor the batches have one.
  void require_length();

 private:
  // Overrides of step_observer.
  void observe(event::update_begin const& event) override { hooks_(event); }
  void observe(event::micro_batch_begin const& event) override { hooks_(event); }
  void observe(event::micro_batch_end const& event) override { hooks_(event); }
  void observe(event::gradients_ready const& event) override { hooks_(event); }
  void observe(event::update_end const& event) override;
  void observe(event::incident const& event) override;
  void observe(event::layers_measured const& event) override;
  void observe(event::out_of_memory const& event) override;
  void observe(event::rung_released const& event) override;
  bool reads_losses() const override { return hooks_.has_hook_for<event::micro_batch_end>(); }
  bool reads_gradients() const override { return hooks_.has_hook_for<event::gradients_ready>(); }
  bool watches_memory() const override { return options().watch_memory; }
  layer_detail watches_layers() const override;
  // Overrides of manual_backward_owner: the program runs the backward passes of a micro-batch.
  void begin_manual_backward() override;
  step_outcome end_manual_backward(weighted_loss const& loss, std::int64_t rows, std::int64_t tokens) override;
  void abandon_manual_backward() override;

  void before_resume() override { require_length(); }
  void drop_open_update() override;
  void clear_stop_requests() override;

  bool is_distributed() const { return of_.ranks_agree; }
  void begin();
  outcome run_epochs(training_data& data, signal_listener const& listener);
  /// Returns nullopt if the epoch is complete and the run continues.
  std::optional<outcome> run_epoch(training_data& data, signal_listener const& listener);
  /// Trains on one batch; returns the outcome if the run ends with it.
  std::optional<outcome> train_one(training_data& data, signal_listener const& listener);
  void before_micro_batch();
  step_outcome after_micro_batch(step_outcome taken);
  /// Settles the update now if a save, an evaluation or the end of the run needs its result; otherwise the result of a device-decided
  /// update is read one update later.
  step_outcome settle_if_needed(step_outcome const& taken);
  /// True if the ranks agreed on a stop. Only meaningful with several ranks.
  bool is_stop_requested() const;
  std::optional<step_outcome> close_partial_update();
  /// Collective: discards partial accumulations that differ in length between ranks, so that all ranks evaluate, save and continue
  /// together.
  void drop_uneven_update();
  /// Wraps the calls of a program's own loop: records an exception that ends the run, as fit() does.
  template <bool EndsRun = false, class Call>
  std::invoke_result_t<Call const&> in_own_loop(Call const& call);

  step_engine& step_;
  update_cursor cursor_{progress_.cursor};
  bool is_end_logged_ = false;
  std::optional<result::gave_up> gave_up_;  ///< result of the last update in a program's own loop
  mutable int signal_ = 0;                  ///< last signal that this rank received; unused with one rank
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/trainer_loop.ipp>
#endif
