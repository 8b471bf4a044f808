// The loop of a trainer, whatever its recipe: data and micro-batches of one model. keel::trainer is its typed front.
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

class trainer_loop final : public run_loop, private step_observer, private manual_backward_host {
 public:
  /// All of them outlive this. Throws as run_loop; on all ranks of the step's world.
  trainer_loop(step_engine& step, trained_models& models, trainer_options& options, run_alarms const& alarms,
               environment const& machine);
  ~trainer_loop() override = default;

  outcome fit(training_data& data);

  /// A micro-batch of how many rows and tokens; nothing for one that cannot be counted.
  struct batch_size {
    std::int64_t rows;
    std::int64_t tokens;
  };
  /// One micro-batch, in fit. `contents`: of the batch; `run` looks at it more closely and makes the step.
  step_outcome take(std::optional<batch_size> const& size, c10::function_ref<batch_contents()> contents,
                    c10::function_ref<step_outcome()> run);
  /// `run` looks at a batch closely before it trains; where it throws, the open update is dropped, on all ranks.
  void check_batch(c10::function_ref<void()> run);
  /// In a program's own loop, which `call` is.
  step_outcome step_in_own_loop(c10::function_ref<step_outcome()> call);
  manual_backward open_manual_backward(std::int64_t rows, std::int64_t tokens);
  std::optional<step_outcome> flush();
  /// `signal()`: the one that asks for a stop, or 0.
  bool should_stop(c10::function_ref<int()> signal) const;
  void end_epoch();
  outcome finish(int signal);
  void change(c10::function_ref<void()> change_numbers);

  /// By epochs only for as long as these have as many updates as at the beginning.
  std::int64_t length() const override;
  bool is_length_pending() const { return step_.facts().is_length_pending; }
  /// Throws recipe_error (L04) where the schedule needs a length that neither options nor batches gave.
  void require_length();

 private:
  // As the step's observer.
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
  // A micro-batch whose backward passes the program runs.
  void begin_manual_backward() override;
  step_outcome end_manual_backward(weighted_loss const& loss, std::int64_t rows, std::int64_t tokens) override;
  void abandon_manual_backward() override;

  void before_resume() override { require_length(); }
  void drop_open_update() override;
  void clear_stop_requests() override;

  bool is_distributed() const { return of_.ranks_agree; }
  void begin();
  outcome run_epochs(training_data& data, signal_listener const& listener);
  /// Nothing if the epoch went to its end and the run goes on.
  std::optional<outcome> run_epoch(training_data& data, signal_listener const& listener);
  /// Trains on one batch; what ends the walk.
  std::optional<outcome> train_one(training_data& data, signal_listener const& listener);
  void before_micro_batch();
  step_outcome after_micro_batch(step_outcome taken);
  /// An update that is decided on a device is read one later, unless something that follows must know it now.
  step_outcome settle_if_needed(step_outcome const& taken);
  /// As the ranks agreed.
  bool is_stop_requested() const;
  std::optional<step_outcome> close_partial_update();
  /// What a partial accumulation has is left out on all ranks, so that they evaluate, save and go on together.
  void drop_uneven_update();
  /// What a program's own loop calls: an exception by which its run is over is in the record as fit's.
  template <bool EndsRun = false, class Call>
  std::invoke_result_t<Call const&> in_own_loop(Call const& call);

  step_engine& step_;
  update_cursor cursor_{progress_.cursor};
  bool is_end_logged_ = false;
  std::optional<result::gave_up> gave_up_;  ///< the last update of a program's own loop
  mutable int signal_ = 0;                  ///< that this rank has, of several
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/trainer_loop.ipp>
#endif
