// The loop that a careful engineer would have written by hand, from a recipe:
//
//     keel::trainer<recipe> run{model, optimizer, {.run_directory = "run", .updates = 1000}};   then run.fit(batches, loss_of)
// fit resumes by itself, updates, records, saves, stops on signals, and returns how it ended; step does so for one micro-batch.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <keel/attention/attention.hpp>
#include <keel/checkpoint/checkpointer.hpp>
#include <keel/collective/agreed.hpp>
#include <keel/data/batch_source.hpp>
#include <keel/determinism/seed.hpp>
#include <keel/evaluation/evaluate.hpp>
#include <keel/metrics/console.hpp>
#include <keel/step/step.hpp>
#include <keel/trainer/checkpointing.hpp>
#include <keel/trainer/environment.hpp>
#include <keel/trainer/epoch.hpp>
#include <keel/trainer/figures.hpp>
#include <keel/trainer/hooks.hpp>
#include <keel/trainer/options.hpp>
#include <keel/trainer/progress.hpp>
#include <keel/trainer/recorder.hpp>
#include <keel/trainer/resume.hpp>
#include <keel/trainer/run_directory.hpp>
#include <keel/trainer/summary.hpp>
#include <keel/trainer/trial.hpp>
#include <keel/trainer/window_timer.hpp>
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
  using environment_type = Environment;

 public:
  static constexpr config configured = config_of<Recipe>;

  /// The model and the optimizer must outlive the trainer. Throws recipe_error for a recipe that this model, optimizer or
  /// length breaks, error (E11, E12) for an optimizer or options that do not fit, file_error (E01, E02) for the directory.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  trainer_body(Model& model, Optimizer& optimizer, trainer_options options = {}, files file_system = {})
      : options_(std::move(options)),
        step_(model, optimizer, length_of(options_, configured.accumulate.count), forward_events{this}),
        console_(options_.console, options_.mode, options_.console_every) {
    require_sound(options_, saves);
    if (!options_.run_directory.empty()) {
      directory_ = std::make_unique<run_directory<files>>(options_.run_directory, file_system);
      step_.ladder().offload_to(directory_->root());
    }
    step_.restore_on_skip(this->registered());
    if constexpr (saves) this->note_buffers(step_.model());
    if constexpr (saves) {
      // An optimizer that cannot be saved is better refused now than at the first checkpoint.
      with_optimizer_codec(optimizer, [](auto) {});
      static_cast<void>(safetensors_writer(model_tensors(step_.model()), {}));
      directory_->warn(directory_->checkpoints().prepare());
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
  /// Refused (U40). Of two constructors that take the braces, that with the references to const comes second.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  trainer_body(Model const& model, Optimizer const& optimizer, mistyped_options)
      : trainer_body(const_cast<Model&>(model), const_cast<Optimizer&>(optimizer)) {
    refuse_call<rule::U40, Model>();
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
      require_epoch_length(batches);
      step_.tell(source_facts<std::remove_cvref_t<Batches>>());
      typename Environment::stop const listener(options_.stop_on_signals);
      deterministic_scope const deterministic(configured.determinism.kind == determinism::kind::strict);
      try {
        begin_run();
        outcome const result = run_epochs(batches, loss_of, listener);
        return end_run(result);
      } catch (std::exception const& thrown) {
        drop_open_window();
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

  /// For a loop of your own: a signal or request_stop() asks for its end, or an evaluation of the recipe, and an update is
  /// complete, so that finish() loses nothing.
  template <class Listener>
  bool should_stop(Listener const& signals) const {
    return step_.at_boundary() &&
           (signals.received() != 0 || stop_requested_.load(std::memory_order_relaxed) || this->ended_early());
  }
  /// The end of a loop of your own, as fit's: saves what is not saved yet, ends the record, and says how it ended: by `signal`,
  /// or at its end. Micro-batches of an incomplete update do not count as consumed. Throws what a save throws.
  outcome finish(int signal = 0) {
    drop_open_window();
    bool const stops = signal != 0 || stop_requested_.load(std::memory_order_relaxed);
    step_.settle();
    return end_run(stops ? outcome(outcome::stopped{signal, step_.updates()}) : outcome(outcome::finished{step_.updates()}));
  }
  /// For a loop of your own: the data has come to its end once. Evaluates and saves where the recipe does so by epochs.
  void end_epoch() {
    if (!begun_) begin_run();
    hooks_(event::epoch_end{cursor_.epoch, cursor_.position});
    ++cursor_.epoch;
    cursor_.position = 0;
    cursor_.in_epoch = false;
    if (!step_.at_boundary()) return;  // the update that reaches into the next epoch is followed by both
    after_epoch();
    this->note_random();
  }

  /// The data cursor: where a loop of one's own continues after resume().
  data_cursor const& cursor() const { return cursor_; }

  /// Weighted mean of `loss_of` over the batches, without a graph; random state and training modes are left as they were. An
  /// evaluation_result where it returns batch_metrics.
  template <class Batches, class LossOf>
  auto evaluate(Batches&& batches, LossOf&& loss_of) {
    if constexpr (!batch_source<std::remove_reference_t<Batches>>) {
      return refuse_call<rule::U32, Batches>(), 0.0;
    } else if constexpr (!countable_batch<batch_of<std::remove_reference_t<Batches>>>) {
      return refuse_call<rule::U14, batch_of<std::remove_reference_t<Batches>>>(), 0.0;
    } else {
      return evaluate_now(batches, loss_of);
    }
  }

  /// What the recipe's evaluations look at; both are kept by copy, or by std::ref. The batches are read again each time.
  /// Refused for a range that can be read once (U32), or that says it is endless where nothing bounds the evaluation (E02). A second call adds a second evaluation if it has a name.
  template <class Batches, class LossOf>
  requires(!std::convertible_to<Batches, std::string>) void evaluate_on(Batches batches, LossOf loss_of) {
    evaluate_on(std::string(), std::move(batches), std::move(loss_of));
  }
  /// `name` goes before its values, as in "validation/loss"; the same name takes the place of the one before.
  template <class Batches, class LossOf>
  void evaluate_on(std::string name, Batches batches, LossOf loss_of) {
    if constexpr (!is_repeatable<std::unwrap_reference_t<Batches>>) {
      refuse_call<rule::U32, Batches>();
    } else if constexpr (!countable_batch<batch_of<std::unwrap_reference_t<Batches>>>) {
      refuse_call<rule::U14, batch_of<std::unwrap_reference_t<Batches>>>();
    } else if constexpr (source_facts<std::unwrap_reference_t<Batches>>().endless && configured.evaluation.batches == 0) {
      refuse_call<rule::E02, Batches>();
    } else {
      auto run = [this, name, batches, loss_of]() mutable {
        return evaluate_first(name, configured.evaluation.batches, static_cast<std::unwrap_reference_t<Batches>&>(batches),
                              static_cast<std::unwrap_reference_t<LossOf>&>(loss_of));
      };
      auto const known =
          std::find_if(evaluations_.begin(), evaluations_.end(), [&](auto const& one) { return one.name == name; });
      if (known != evaluations_.end()) {
        known->run = std::move(run);
      } else {
        evaluations_.push_back({std::move(name), std::move(run)});
      }
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

  template <class Batches, class LossOf>
  auto evaluate_now(Batches& batches, LossOf& loss_of) {
    auto const result = evaluate_first("", 0, batches, loss_of);
    using returned = std::remove_cvref_t<std::invoke_result_t<LossOf&, batch_of<Batches> const&>>;
    if constexpr (std::same_as<returned, batch_metrics>) {
      return result;
    } else {
      return result.values.front().second;
    }
  }

  /// Throws error (E12) for a source that knows its length, where the options say another one.
  template <class Batches>
  void require_epoch_length([[maybe_unused]] Batches const& batches) const {
    if constexpr (
        requires {
          { batches.size() } -> std::convertible_to<std::int64_t>;
        } &&
        !requires { batches.begin(); }) {
      auto const size = static_cast<std::int64_t>(batches.size());
      if (options_.batches_per_epoch > 0 && size != options_.batches_per_epoch)
        throw error("E12", "options.batches_per_epoch is " + std::to_string(options_.batches_per_epoch) +
                               ", and the batches say that an epoch has " + std::to_string(size) +
                               ". Give the options that number: schedules are spread over it.");
    }
  }

  void drop_open_window() {
    if (step_.has_window()) {
      window_.rewind();
      this->restore_random();
    }
    step_.drop_window();
  }

  /// On the first `most` batches; 0: on all.
  template <class Batches, class LossOf>
  evaluation_result evaluate_first(std::string const& name, std::int64_t most, Batches& batches, LossOf& loss_of) {
    step_.settle();
    // Between windows nobody needs the gradients: the next one begins without them.
    auto const make_room = [this] {
      if (step_.at_boundary()) clear_gradients(step_.parameters().tensors);
    };
    evaluation_memory const memory{step_.pieces(), may_cut, step_.relief().attention, make_room};
    evaluation_result const result = keel::evaluate<typename Environment::autocast>(
        step_.model(), step_.parameters().device, configured.precision.kind, batches, loss_of, memory, most);
    recorder_.evaluated(step_.updates(), name, result);
    return result;
  }

  /// All evaluations of the recipe. Returns the value that is judged. Throws error (E12) where there is none of that name.
  double evaluate_all() {
    std::vector<std::pair<std::string, double>> all;
    {
      [[maybe_unused]] auto const average = averaged_for_evaluation();
      for (auto& one : evaluations_) {
        for (auto const& [name, value] : one.run().values) all.emplace_back(joined(one.name, name), value);
      }
    }
    if constexpr (configured.evaluation.monitor.empty()) return all.front().second;
    std::string const wanted = configured.evaluation.monitor.letters;
    std::string there;
    for (auto const& [name, value] : all) {
      if (name == wanted || name.ends_with("/" + wanted)) return value;
      there += (there.empty() ? "" : ", ") + name;
    }
    throw error("E12", "the recipe monitors " + wanted + ", and its evaluations give " + there +
                           ". Return keel::batch_metrics with that name, or monitor one of these.");
  }
  auto averaged_for_evaluation() {
    if constexpr (configured.evaluation.averaged && step_type::averages) {
      return averaged();
    } else {
      return nullptr;
    }
  }
  static std::string joined(std::string const& evaluation, std::string const& value) {
    std::string const name = value.empty() ? "loss" : value;
    return evaluation.empty() ? name : evaluation + "/" + name;
  }

  void begin_run() {
    this->resume();
    if (begun_) return;
    // A second fit of one trainer goes on; only the first of a run that was not resumed begins it.
    if (!*this->resumed_ && record_.attempts == 0) {
      if constexpr (configured.determinism.kind != determinism::kind::off) seed<Recipe>(step_.parameters().device);
      recorder_.begin(configured);
    }
    recorder_.write_recipe(configured);
    if (configured.attention.kind == attention_kind::fused && attention_kernel(attention_kind::fused) != attention_kind::fused)
      recorder_.no_fused_attention(step_.updates());
    if (directory_) recorder_.weaker_promises(step_.updates());
    started_ = clock::now();
    timer_.begin_run();
    tokens_before_ = record_.tokens;
    if (configured.evaluation.kind != evaluation::kind::none && evaluations_.empty())
      throw error("E12", "the recipe evaluates every " + std::to_string(configured.evaluation.interval) +
                             (configured.evaluation.kind == evaluation::kind::every ? " updates" : " epochs") +
                             ", and has nothing to evaluate on. Call evaluate_on(batches, loss_of) before the run.");
    hooks_(event::run_begin{step_.updates(), *this->resumed_});
    this->begin_saving();
    this->note_random();
    begun_ = true;
  }

  template <class Batches, class LossOf, class Listener>
  outcome run_epochs(Batches& batches, LossOf& loss_of, Listener const& listener) {
    if constexpr (requires { std::string(batches.describe()); })
      take_order(cursor_, batches.describe(), options_.accept_changed_recipe);
    data_moved_ = false;  // in a loop of one's own nobody asked
    std::int64_t const epochs = options_.epochs > 0 ? options_.epochs : (length() > 0 ? 0 : 1);
    if (length_reached()) {
      require_work_left(step_.updates(), length());
      char const* const where = ended_ ? "this trainer has made its" : "the run directory holds a run that finished its";
      console_.notice(formatted("nothing left to do: %s %lld updates", where, static_cast<long long>(length())));
      return outcome::finished{step_.updates()};
    }
    if (this->ended_early()) {
      console_.notice("nothing left to do: the run directory holds a run that stopped early");
      return outcome::finished{step_.updates()};
    }
    if (ended_ && epochs > 0 && cursor_.epoch >= epochs)
      console_.notice("nothing left to do: this trainer has made its " + std::to_string(epochs) + " epochs");
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
      // Where the length falls on the end of an epoch, that is evaluated and saved as the others are.
      if (length_reached() && options_.batches_per_epoch > 0 && cursor_.position == options_.batches_per_epoch) {
        end_epoch();
        if (data_moved_) return result;
      }
      if (length_reached() || this->ended_early()) return outcome::finished{step_.updates()};
      int const signal = listener.received();
      if (signal == 0 && !stop_requested_.exchange(false)) return std::nullopt;
      step_.settle();
      return outcome::stopped{signal, step_.updates()};
    };
    auto ended = walk_epoch(batches, cursor_, step_.parameters().device, begin, take_one);
    if (std::exchange(data_moved_, false)) return std::nullopt;
    if (ended) return ended;
    end_epoch();
    if (std::exchange(data_moved_, false)) return std::nullopt;
    if (length_reached() || this->ended_early()) return outcome::finished{step_.updates()};
    return std::nullopt;
  }

  std::int64_t length() const { return length_of(options_, configured.accumulate.count); }
  bool length_reached() const { return length() > 0 && step_.updates() >= length(); }

  template <class Batch, class LossOf>
  outcome take(Batch const& batch, LossOf&& loss_of) {
    if (step_.at_boundary()) {
      timer_.begin_window(cursor_.epoch);
      window_.begin();
    }
    if constexpr (countable_batch<Batch>) {
      if (!console_begun_) {
        console_begun_ = true;
        console_.begin(length(), batch_traits<Batch>::tokens(batch) == batch_traits<Batch>::rows(batch) ? "rows" : "tokens");
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
    bool const last = length() > 0 && step_.updates() + 1 >= length();
    bool const wanted = last || this->is_save_due(step_.updates() + 1) || is_evaluation_due(step_.updates() + 1);
    return wanted ? step_.settle().value_or(result) : result;
  }

  bool is_evaluation_due([[maybe_unused]] std::int64_t updates) const {
    if constexpr (configured.evaluation.kind == evaluation::kind::every) {
      return updates % configured.evaluation.interval == 0;
    } else {
      return false;
    }
  }
  /// At an update boundary, once an epoch.
  bool is_epoch_evaluation_due() const {
    if constexpr (configured.evaluation.kind == evaluation::kind::every_epochs) {
      return cursor_.epoch / configured.evaluation.interval > record_.evaluated_epochs / configured.evaluation.interval;
    } else {
      return false;
    }
  }
  void evaluate_recipe() {
    bool const over = this->evaluated([this] { return evaluate_all(); });
    record_.evaluated_epochs = cursor_.epoch;
    if (over) recorder_.stopped_early(step_.updates(), this->why_ended_early());
  }
  void after_epoch() {
    // What an update under way on a device came to is of this epoch.
    bool const evaluates = is_epoch_evaluation_due();
    if (evaluates || configured.checkpoint.kind == checkpoint::kind::every_epochs) step_.settle();
    if (evaluates) evaluate_recipe();
    if constexpr (saves) {
      // Also where the cadence is another one: the evaluation may be the best, which is saved at once.
      if (!evaluates && configured.checkpoint.kind != checkpoint::kind::every_epochs) return;
      if (this->keep(outcome::finished{step_.updates()}, false)) data_moved_ = true;
    }
  }

  /// The cadences, at a step boundary and whatever the step's outcome was.
  void after_window(outcome const& result) {
    if ((result.is<outcome::updated>() && is_evaluation_due(step_.updates())) || is_epoch_evaluation_due()) evaluate_recipe();
    if (this->keep(result, save_signal_.take_request())) data_moved_ = true;
    this->note_random();
  }

  template <class Event>
  void on_event(Event const& event) {
    if constexpr (std::is_same_v<Event, event::out_of_memory>) recorder_.out_of_memory(event);
    if constexpr (std::is_same_v<Event, event::rung_given_back>) recorder_.rung_given_back(event);
    if constexpr (std::is_same_v<Event, event::update_end>) {
      window_.close(event.late);
      if (event.result.template is<outcome::updated>()) this->updated(event.loss);
    }
    constexpr bool is_end = std::is_same_v<Event, event::update_end>;
    if constexpr (is_end) this->lacks_verdict(true);
    hooks_(event);
    // After the hooks, so that what they log stands in this window's line.
    if constexpr (is_end) record_update(event);
    if constexpr (is_end) this->lacks_verdict(false);
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
    ended_ = true;
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
      this->abandon_saving(thrown);
    } catch (std::exception const&) {
      // Its end is an event in the record; older checkpoints are whole.
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
  bool ended_ = false;  ///< once, by itself
  bool console_begun_ = false;
  std::int64_t tokens_before_ = 0;
  typename clock::time_point started_{};
  window_timer<clock> timer_;
  struct named_evaluation {
    std::string name;
    std::function<evaluation_result()> run;
  };
  std::vector<named_evaluation> evaluations_;
  bool data_moved_ = false;  ///< by a rollback
  save_listener save_signal_{saves && options_.stop_on_signals};
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
class trainer : public detail::admission<Recipe, detail::at_trainer, detail::trainer_box<Environment>>::type {
  using admission = detail::admission<Recipe, detail::at_trainer, detail::trainer_box<Environment>>;
  using base = typename admission::type;
  static_assert(sizeof(typename admission::demanded) > 0);

 public:
  using base::base;
};

}  // namespace keel
