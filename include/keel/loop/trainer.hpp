// The loop that a careful engineer would have written by hand, from a recipe:
//
//     keel::trainer<recipe> run{model, optimizer, {.run_directory = "run", .updates = 1000}};   then run.fit(batches, loss_of)
// fit resumes by itself, updates, records, saves, stops on signals, and returns how it ended; step does so for one micro-batch.
#pragma once

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <keel/collective/agreed.hpp>
#include <keel/loop/batch_source.hpp>
#include <keel/loop/checkpointer.hpp>
#include <keel/loop/checkpointing.hpp>
#include <keel/loop/environment.hpp>
#include <keel/loop/epoch.hpp>
#include <keel/loop/evaluate.hpp>
#include <keel/loop/figures.hpp>
#include <keel/loop/hooks.hpp>
#include <keel/loop/options.hpp>
#include <keel/loop/progress.hpp>
#include <keel/loop/recorder.hpp>
#include <keel/loop/resume.hpp>
#include <keel/loop/run_directory.hpp>
#include <keel/loop/seed.hpp>
#include <keel/loop/summary.hpp>
#include <keel/loop/trial.hpp>
#include <keel/loop/window_timer.hpp>
#include <keel/memory/attention.hpp>
#include <keel/observe/console.hpp>
#include <keel/step/step.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace keel {

namespace detail {

template <class Recipe, class Environment>
class trainer_body : public trials<trainer_body<Recipe, Environment>, step_body<Recipe, Environment>,
                                   config_of<Recipe>.determinism.kind == determinism::kind::strict>,
                     public checkpointing<trainer_body<Recipe, Environment>, Recipe, Environment>,
                     public run_figures<trainer_body<Recipe, Environment>> {
  /// The step's observer. It may hold a plain pointer because a trainer neither copies nor moves.
  struct forward_events {
    trainer_body* to;
    template <class Event>
    void operator()(Event const& event) const {
      to->on_event(event);
    }
    bool reads_losses() const { return to->hooks_.template hears<event::micro_batch_end>(); }
    bool reads_gradients() const { return to->hooks_.template hears<event::gradients_ready>(); }
    bool watches_memory() const { return to->options_.watch_memory; }
  };
  using clock = typename Environment::clock;
  using files = typename Environment::files;
  using keeper = checkpointing<trainer_body<Recipe, Environment>, Recipe, Environment>;
  using step_type = step_body<Recipe, Environment, forward_events>;

 public:
  static constexpr config configured = config_of<Recipe>;

  /// The model and the optimizer must outlive the trainer. Throws recipe_error for a recipe that this model, optimizer or
  /// length breaks, error (E11, E12) for an optimizer or options that do not fit, file_error (E01, E02) for the directory.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  trainer_body(Model& model, Optimizer& optimizer, trainer_options options = {}, files file_system = {})
      : options_(std::move(options)),
        step_(model, optimizer, options_.updates, forward_events{this}),
        console_(options_.console, options_.mode, options_.console_every) {
    require_sound(options_, saves);
    if (!options_.run_directory.empty()) {
      step_.ladder().offload_to(options_.run_directory);
      directory_ = std::make_unique<run_directory<files>>(options_.run_directory, file_system);
    }
    step_.restore_on_skip(this->registered());
    if constexpr (saves) this->note_buffers(step_.model());
    if constexpr (saves) {
      // An optimizer that cannot be saved is better refused now than at the first checkpoint.
      with_optimizer_codec(optimizer, [](auto) {});
      directory_->checkpoints().prepare();
      saver_ =
          std::make_unique<checkpointer<files, clock>>(configured.checkpoint, directory_->checkpoints(), directory_->metrics(),
                                                       [this](save_report const& report) { this->on_save(report); });
    }
  }
  /// Refused (Z08).
  template <class Model, std::derived_from<torch::optim::Optimizer> First, std::derived_from<torch::optim::Optimizer> Second>
  trainer_body(Model& model, First& first, Second&, trainer_options = {}, files = {}) : trainer_body(model, first) {
    refuse_call<rule::Z08, First, Second>();
  }
  trainer_body(trainer_body const&) = delete;
  trainer_body& operator=(trainer_body const&) = delete;

  /// Trains on the batches until the options' length is reached, the data ends, a stop is asked for or the ladder gives up.
  /// `batches`: an input range, a LibTorch data loader, or a function of the epoch that returns one; each element is one
  /// micro-batch. `loss_of(batch)`: its mean loss, or keel::weighted_loss.
  template <class Batches, class LossOf>
  outcome fit(Batches&& batches, LossOf&& loss_of) {
    if constexpr (!batch_source<std::remove_reference_t<Batches>>) {
      refuse_call<rule::U18, Batches>();
      return outcome::finished{0};
    } else {
      step_.tell(source_facts<std::remove_cvref_t<Batches>>());
      typename Environment::stop const listener(options_.stop_on_signals);
      scoped_pointer const heard(listener_, listener);
      deterministic_scope const deterministic(configured.determinism.kind == determinism::kind::strict);
      try {
        begin_run();
        outcome const result = run_epochs(batches, loss_of, listener);
        return end_run(result);
      } catch (std::exception const& thrown) {
        if (step_.has_window()) window_.rewind();
        step_.drop_window();
        record_failure(thrown);
        throw;
      }
    }
  }

  /// One micro-batch, for programs that own their loop: updates, records and saves as fit does. Call resume() first if the run
  /// may be a continued one.
  template <class Batch, class LossOf>
  outcome step(Batch const& batch, LossOf&& loss_of) {
    deterministic_scope const deterministic(configured.determinism.kind == determinism::kind::strict);
    if (!begun_) begin_run();
    return take(batch, loss_of);
  }

  /// As keel::step's, for a loop of one's own: waits for an update that is under way on a device.
  std::optional<outcome> settle() { return step_.settle(); }
  /// Applies what the data's end left incomplete.
  std::optional<outcome> flush() {
    auto const run = [this] { return step_.flush(); };
    auto last = step_.has_window() ? window_.closing(run) : run();
    if (last && last->template is<outcome::gave_up>()) {
      window_.rewind();
    } else if (last) {
      after_window(*last);
    }
    return last;
  }

  /// The data cursor: where a loop of one's own continues after resume().
  data_cursor const& cursor() const { return cursor_; }

  /// Weighted mean of `loss_of` over the batches, without a graph; random state and training modes are left as they were.
  template <class Batches, class LossOf>
  double evaluate(Batches&& batches, LossOf&& loss_of) {
    return evaluate_first(0, batches, loss_of);
  }

  /// What the recipe's evaluations look at, every so many updates; both are kept by copy, or by std::ref. The batches are read
  /// anew each time. Refused (U32) for a range that can be read once.
  template <class Batches, class LossOf>
  void evaluate_on(Batches batches, LossOf loss_of) {
    if constexpr (!is_repeatable<std::unwrap_reference_t<Batches>>) {
      refuse_call<rule::U32, Batches>();
    } else {
      evaluate_ = [this, batches, loss_of]() mutable {
        return evaluate_first(configured.evaluation.batches, static_cast<std::unwrap_reference_t<Batches>&>(batches),
                              static_cast<std::unwrap_reference_t<LossOf>&>(loss_of));
      };
    }
  }

  /// Puts the moving average into the model for as long as the returned value lives: `auto scope = run.averaged();`, then
  /// evaluate, or save the weights. Training meanwhile, or a second one, throws error (M04).
  [[nodiscard]] auto averaged() {
    if constexpr (step_type::averages) {
      step_.settle();
      return step_.average().swap_in();
    } else {
      return refuse_call<rule::U31, Recipe>(), nullptr;
    }
  }

  /// Adds a hook: `run.on([](keel::event::update_end const& e) { .. });`
  template <class Hook>
  void on(Hook hook) {
    hooks_.add(std::move(hook));
  }

  /// Ends fit at the next step boundary, from a hook or from another thread.
  void request_stop() { stop_requested_.store(true, std::memory_order_relaxed); }

  /// A metric of one's own for a line of the record: from a hook the window's, between windows the next one's.
  void log(reduced_value const& value) { recorder_.log(value); }
  /// Refused (Y01): one rank's value.
  template <class... Raw>
  void log(Raw const&...) {
    refuse_call<rule::Y01, Raw...>();
  }

 private:
  friend forward_events;
  template <class, class, bool>
  friend class keel::trials;
  friend keeper;
  friend run_figures<trainer_body>;
  typename Environment::world world() const { return {}; }
  static constexpr bool may_cut = oom::has_rung(configured.oom, oom::rung_kind::halve_micro_batch);
  static constexpr bool saves = configured.checkpoint.kind != checkpoint::kind::never;

  config present_config() const {
    config value = configured;
    value.run = step_.facts();
    return value;
  }

  /// On the first `most` batches; 0: on all.
  template <class Batches, class LossOf>
  double evaluate_first(std::int64_t most, Batches& batches, LossOf& loss_of) {
    step_.settle();
    // Between windows nobody needs the gradients: the next one begins without them.
    auto const make_room = [this] {
      if (step_.at_boundary()) clear_gradients(step_.parameters().tensors);
    };
    evaluation_memory const memory{step_.pieces(), may_cut, step_.relief().attention, make_room};
    double const loss = keel::evaluate<typename Environment::autocast>(
        step_.model(), step_.parameters().device, configured.precision.kind, batches, loss_of, memory, most);
    recorder_.evaluated(step_.updates(), loss);
    return loss;
  }

  void begin_run() {
    this->resume();
    if (begun_) return;
    // A second fit of one trainer goes on; only the first of a run that was not resumed begins it.
    if (!*this->resumed_ && record_.attempts == 0) {
      if constexpr (configured.determinism.kind != determinism::kind::off) seed<Recipe>(step_.parameters().device);
      recorder_.begin(configured);
    }
    if (configured.attention.kind == attention_kind::fused && attention_kernel(attention_kind::fused) != attention_kind::fused)
      recorder_.no_fused_attention(step_.updates());
    started_ = clock::now();
    timer_.begin_run();
    tokens_before_ = record_.tokens;
    if (configured.evaluation.kind != evaluation::kind::none && !evaluate_)
      throw error("E12", "the recipe evaluates every " + std::to_string(configured.evaluation.interval) +
                             " updates, and nobody said on what. Call evaluate_on(batches, loss_of) before the run.");
    hooks_(event::run_begin{step_.updates(), *this->resumed_});
    this->begin_saving();
    begun_ = true;
  }

  template <class Batches, class LossOf, class Listener>
  outcome run_epochs(Batches& batches, LossOf& loss_of, Listener const& listener) {
    if constexpr (requires { std::string(batches.describe()); })
      take_order(cursor_, batches.describe(), options_.accept_changed_recipe);
    data_moved_ = false;  // in a loop of one's own nobody asked
    std::int64_t const epochs = options_.epochs > 0 ? options_.epochs : (options_.updates > 0 ? 0 : 1);
    if (length_reached()) {
      require_work_left(step_.updates(), options_.updates);
      console_.notice(formatted("nothing left to do: the run directory holds a run that finished its %lld updates",
                                static_cast<long long>(options_.updates)));
      return outcome::finished{step_.updates()};
    }
    if (this->ended_early()) {
      console_.notice("nothing left to do: the run directory holds a run that stopped early");
      return outcome::finished{step_.updates()};
    }
    // A single-pass range has one epoch, also after a resume at its end.
    for (;;) {
      while ((epochs == 0 || cursor_.epoch < epochs) && (is_repeatable<Batches> || cursor_.epoch == 0)) {
        if (auto ended = run_epoch(batches, loss_of, listener)) return *ended;
      }
      auto const last = flush();
      if (last && last->template is<outcome::gave_up>()) return *last;
      // The last window may have sent the run back, and then there is data again.
      if (!std::exchange(data_moved_, false)) return outcome::finished{step_.updates()};
    }
  }

  /// Nothing if the epoch went to its end and the run goes on.
  template <class Batches, class LossOf, class Listener>
  std::optional<outcome> run_epoch(Batches& batches, LossOf& loss_of, Listener const& listener) {
    auto const begin = [&](std::int64_t position) { hooks_(event::epoch_begin{cursor_.epoch, position}); };
    auto const take_one = [&](auto const& batch) -> std::optional<outcome> {
      // By reference: a loss with state of its own must not start anew with every copy.
      outcome const result = take(batch, std::ref(loss_of));
      if (result.template is<outcome::gave_up>()) return result;
      if (!step_.at_boundary()) return std::nullopt;
      // Back in the data: the walk begins again at the cursor.
      if (data_moved_) return result;
      if (length_reached() || this->ended_early()) return outcome::finished{step_.updates()};
      int const signal = listener.received();
      if (signal == 0 && !stop_requested_.exchange(false)) return std::nullopt;
      step_.settle();
      return outcome::stopped{signal, step_.updates()};
    };
    auto ended = walk_epoch(batches, cursor_, step_.parameters().device, begin, take_one);
    if (std::exchange(data_moved_, false)) return std::nullopt;
    if (ended) return ended;
    hooks_(event::epoch_end{cursor_.epoch, cursor_.position});
    ++cursor_.epoch;
    cursor_.position = 0;
    cursor_.in_epoch = false;
    return std::nullopt;
  }

  bool length_reached() const { return options_.updates > 0 && step_.updates() >= options_.updates; }

  template <class Batch, class LossOf>
  outcome take(Batch const& batch, LossOf&& loss_of) {
    if (step_.at_boundary()) {
      timer_.begin_window(cursor_.epoch);
      window_.begin();
    }
    if constexpr (countable_batch<Batch>) {
      if (!console_begun_) {
        console_begun_ = true;
        console_.begin(options_.updates,
                       batch_traits<Batch>::tokens(batch) == batch_traits<Batch>::rows(batch) ? "rows" : "tokens");
      }
    }
    // A window that gives up consumed nothing: the checkpoint that follows must begin with its first batch again.
    outcome const result = window_.taking([&] { return step_(batch, loss_of); });
    if (result.template is<outcome::gave_up>()) {
      window_.rewind();
      return result;
    }
    window_.advance();
    if (!step_.at_boundary()) return result;
    outcome const known = known_now(result);
    after_window(known);
    return known;
  }

  /// An update that is decided on a device is read one later, unless something that follows must know it now.
  outcome known_now(outcome const& result) {
    if (!step_.is_pending()) return result;
    bool const last = options_.updates > 0 && step_.updates() + 1 >= options_.updates;
    bool const wanted = last || this->is_save_due(step_.updates() + 1) || is_evaluation_due(step_.updates() + 1);
    return wanted ? step_.settle().value_or(result) : result;
  }

  bool is_evaluation_due(std::int64_t updates) const {
    return configured.evaluation.kind != evaluation::kind::none && updates % configured.evaluation.interval == 0;
  }

  /// The cadences, at a step boundary and whatever the step's outcome was.
  void after_window(outcome const& result) {
    if (result.is<outcome::updated>() && is_evaluation_due(step_.updates()) && this->evaluated(evaluate_)) {
      recorder_.stopped_early(step_.updates(), configured.evaluation.early_stop);
    }
    bool const asked = listener_ != nullptr && listener_->take_save_request();
    if (this->keep(result, asked)) data_moved_ = true;
  }

  template <class Event>
  void on_event(Event const& event) {
    if constexpr (std::is_same_v<Event, event::out_of_memory>) recorder_.out_of_memory(event);
    if constexpr (std::is_same_v<Event, event::rung_given_back>) recorder_.rung_given_back(event);
    if constexpr (std::is_same_v<Event, event::update_end>) {
      window_.close(event.late);
      if (event.result.template is<outcome::updated>()) this->updated(event.loss);
    }
    hooks_(event);
    // After the hooks, so that what they log stands in this window's line.
    if constexpr (std::is_same_v<Event, event::update_end>) record_update(event);
  }

  void record_update(event::update_end const& event) {
    auto const time = timer_.end_update(event.late && step_.has_window());
    // skip<N> counts in silence, apart from the record; warn<N> speaks.
    bool const warns = configured.nonfinite.kind == nonfinite::kind::warn;
    recorder_.update(event, {time.epoch, step_.learning_rate(), step_.skipped(), time.milliseconds}, warns);
  }

  outcome end_run(outcome const& result) {
    step_.settle();
    this->end_saving();
    std::string const words = ending(result);
    recorder_.ended(result, step_.updates(), words);
    double const seconds = std::chrono::duration<double>(clock::now() - started_).count();
    console_.summary(summary_rows(words, step_.updates(), step_.skipped(), step_.clip_fraction(), record_,
                                  record_.tokens - tokens_before_, seconds, options_.run_directory.string(), step_.relief(),
                                  recorder_.timeline()));
    hooks_(event::run_end{result});
    begun_ = false;
    stop_requested_ = false;
    return result;
  }

  /// The run ends with an exception; what can still be written down is, and the exception goes on.
  void record_failure(std::exception const& thrown) {
    begun_ = false;
    try {
      step_.settle();
    } catch (std::exception const&) {
      // What ends the run is the exception that is on its way.
    }
    try {
      this->abandon_saving();
    } catch (std::exception const&) {
      // Its end was told as an event; older checkpoints are whole.
    }
    recorder_.failed(step_.updates(), first_line(thrown));
  }

  trainer_options options_;
  hooks hooks_;
  std::unique_ptr<run_directory<files>> directory_;
  step_type step_;
  console console_;
  data_cursor cursor_;
  window_cursor window_{cursor_};
  run_record record_;
  recorder<files> recorder_{directory_, console_, record_};
  std::atomic<bool> stop_requested_{false};
  bool begun_ = false;
  bool console_begun_ = false;
  std::int64_t tokens_before_ = 0;
  typename clock::time_point started_{};
  window_timer<clock> timer_;
  std::function<double()> evaluate_;
  bool data_moved_ = false;  ///< by a rollback
  typename Environment::stop const* listener_ = nullptr;
  std::unique_ptr<checkpointer<files, clock>> saver_;  ///< last: a save that is under way ends before what it works with
};

template <class Environment>
struct trainer_box {
  template <class Recipe>
  using body = trainer_body<Recipe, Environment>;
};

}  // namespace detail

/// The trainer of a recipe; see trainer_body's members. A refused recipe is a compile error, one a broken rule.
template <class Recipe, class Environment = environment>
class trainer : public detail::admitted<Recipe, rule::unbuilt_rules, detail::trainer_box<Environment>> {
  using base = detail::admitted<Recipe, rule::unbuilt_rules, detail::trainer_box<Environment>>;

 public:
  using base::base;
};

}  // namespace keel
