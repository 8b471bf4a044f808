// keel::run, a run of several models: parts with a model, an optimizer and a recipe each, and one directory, one checkpoint, one record and
// one position in the data for all of them. The loop is the program's:
//
//     keel::run<keel::recipe<keel::checkpoint::every<500_steps>>> run{{.run_directory = "gan"}};
//     keel::part<d_recipe> d{run, "discriminator", discriminator, d_optimizer};
//     keel::part<g_recipe> g{run, "generator", generator, g_optimizer};
//     for (auto& batch : run.epochs(loader, 30)) {
//       d.update(batch, d_loss);
//       g.update([&] { return g_loss(); });
//     }
//     keel::outcome result = run.finish();
//
// Any order and number of updates a part. What belongs to all of it happens between two iterations, when no part has an update open:
// the record's line, evaluations, checkpoints, signals, rollbacks. An update of the run, by which its cadences count, is an iteration in
// which a part applied something, or as many iterations as accumulation takes. A skipped update of a part leaves the buffers of all parts'
// models as they were, and the registered state; so a part whose loss runs through another's batch norm leaves no NaN in it.
// On several ranks the run's recipe and those of its parts have keel::shard::replicate, or of a part keel::shard::zero<1>, and the world comes first:
//     keel::run<mine> run{keel::join(), {.run_directory = "gan"}};
// All ranks make the same updates in the same order; what happens on one of them happens on all, as in a trainer (collective/README.md).
// Left out: alarms, profiles, kept incidents, saves on an exception and dry runs, which are a trainer's (U54), its figures of layers,
// memory and utilisation, and averages of several models at once.
#pragma once

#include <c10/util/ScopeExit.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <exception>
#include <iterator>
#include <keel/collective/agreed.hpp>
#include <keel/collective/words_of_rank.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/data/batch_source.hpp>
#include <keel/data/no_batches.hpp>
#include <keel/determinism/seed.hpp>
#include <keel/evaluation/evaluate.hpp>
#include <keel/metrics/console.hpp>
#include <keel/metrics/metric.hpp>
#include <keel/step/own_backward.hpp>
#include <keel/step/step.hpp>
#include <keel/step/world_for.hpp>
#include <keel/trainer/batch_walk.hpp>
#include <keel/trainer/checkpoint_manager.hpp>
#include <keel/trainer/environment.hpp>
#include <keel/trainer/epoch.hpp>
#include <keel/trainer/evaluator.hpp>
#include <keel/trainer/hooks.hpp>
#include <keel/trainer/iterations_of_ranks.hpp>
#include <keel/trainer/open_directory.hpp>
#include <keel/trainer/options.hpp>
#include <keel/trainer/progress.hpp>
#include <keel/trainer/run_log.hpp>
#include <keel/trainer/run_of_ranks.hpp>
#include <keel/trainer/run_part.hpp>
#include <keel/trainer/signals.hpp>
#include <keel/trainer/summary.hpp>
#include <keel/trainer/update_timer.hpp>
#include <keel/trainer/watched_run.hpp>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace keel::inline KEEL_MODE {

template <class Recipe, class Environment>
class part;

/// The whole of a run of several parts, which outlives them. One thread uses it; request_stop and request_save may be called from any.
/// Of several ranks each has one, and all make the same calls in the same order.
template <class Recipe = recipe<>, class Environment = environment>
class run {
  using admission = detail::admission<Recipe, detail::at_run>;
  static_assert(alignof(typename admission::demanded) > 0);

 public:
  /// The recipe.
  using recipe_type = typename admission::recipe;
  /// The recipe's configuration, without numbers that are given later.
  static constexpr config configured = detail::kinds_of(config_of<recipe_type>);
  /// What parts take from the machine.
  using environment_type = Environment;
  /// True for a recipe of several ranks.
  static constexpr bool is_of_ranks = shard::is_of_ranks(configured.shard);

  /// Throws error (E12) for options that do not fit, file_error (E01, E02) for the directory.
  explicit run(trainer_options options = {})
    requires(!detail::leaves_numbers_open<recipe_type>)
      : run(detail::recipe_numbers(config_of<recipe_type>), std::move(options), {}) {
    require_world();
  }
  /// For a recipe that leaves numbers open. Throws recipe_error (E22) too.
  explicit run(numbers const& all, trainer_options options = {})
    requires(detail::leaves_numbers_open<recipe_type>)
      : run(detail::recipe_numbers(config_of<recipe_type>, all), std::move(options), {}) {
    require_world();
  }
  /// Of a recipe that replicates, on all ranks of `world`. Throws world_error (E24) for ranks with another recipe or length.
  template <std::same_as<world_of_ranks> World>
  explicit run(World const& world, trainer_options options = {})
    requires(!detail::leaves_numbers_open<recipe_type>)
      : run(detail::recipe_numbers(config_of<recipe_type>), std::move(options), taken_world(world)) {}
  /// The same for a recipe that leaves numbers open.
  template <std::same_as<world_of_ranks> World>
  run(World const& world, numbers const& all, trainer_options options = {})
    requires(detail::leaves_numbers_open<recipe_type>)
      : run(detail::recipe_numbers(config_of<recipe_type>, all), std::move(options), taken_world(world)) {}
  run(run const&) = delete;
  run& operator=(run const&) = delete;
  ~run() {
    if (begun_ && std::uncaught_exceptions() > unwinding_) log_.left_by_exception(parts_.updates(), threw_);
  }

  // The loop.

  /// The batches of `count` epochs, from where the run stands; 0: as many as options.updates needs, or one epoch. Resumes by itself. It
  /// ends early at options.updates, on a signal, request_stop or an evaluation that stops the run. `batches` as for trainer::fit, and
  /// outlives the loop if it is an lvalue. Throws what resume, evaluations and saves throw.
  template <class Batches>
  auto epochs(Batches&& batches, std::int64_t count = 0) {
    static_assert(batch_source<std::remove_reference_t<Batches>>,
                  "epochs() takes a range, a LibTorch data loader, or a function of the epoch that returns one.");
    detail::require_epoch_length(batches, options_.batches_per_epoch);
    return loop<Batches>(*this, std::forward<Batches>(batches), count);
  }
  /// Iterations without batches until the run has made so many, or options.updates: `for (std::int64_t i : run.iterations(1000))`.
  auto iterations(std::int64_t until = 0) { return counted_loop(*this, until > 0 ? until : options_.updates); }

  /// The end of the run: saves what is not saved yet, ends the record, and says how it ended. What a part has accumulated for an update that
  /// is not complete does not count as consumed, unless its flush() came before; where other parts went on beside it meanwhile, only what
  /// was saved before is. Throws what a save throws.
  outcome finish() {
    return leaving_if_it_throws<true>([this] {
      auto const ends = c10::make_scope_exit([this] { watch_.end(); });
      watch_.begin(parts_.updates());
      {
        phase_scope const agreeing(phases_, run_phase::update);
        ranks_.end(progress_.cursor.consumed, in_iteration_, !parts_.at_boundary());
      }
      phase_scope const saving(phases_, run_phase::saving);
      settle_all();
      drop_open_updates();
      outcome const ended = signal_ != 0 || was_stopped_ ? outcome(result::stopped{signal_, parts_.updates()})
                                                         : outcome(result::finished{parts_.updates()});
      return end_run(ended);
    });
  }
  /// Ends the loop at the next boundary, and the loops behind it before they begin; from a hook or from another thread.
  void request_stop() { stop_requested_.store(true, std::memory_order_relaxed); }

  // Hooks, record, state.

  /// Adds a hook for the run's events; update_end is that of the whole iteration. A part has its own hooks.
  template <class Hook>
  void on(Hook hook) {
    hooks_.add(std::move(hook));
  }
  /// For the line of the record of this iteration.
  void log(reduced_value const& value) { log_.log(value); }
  template <class... Raw>  // rejected (Y01): one rank's value
  void log(Raw const&...) {
    detail::reject_call<rule::Y01, Raw...>();
  }
  /// As trainer::register_state: targets, replay buffers, environments. Skipped updates of every part leave it as it was, unless `scope`
  /// says otherwise.
  template <class State>
  void register_state(std::string name, State& state, state_scope scope = state_scope::updates) {
    checkpoints_.register_state(std::move(name), state, scope);
  }
  /// As trainer::migrate.
  void migrate(keel::migrate one) { checkpoints_.migrate(std::move(one)); }

  // Checkpoints.

  /// Loads the newest good checkpoint; false if there is none. The loop does it by itself; call it before what must know where the run
  /// stands. Throws checkpoint_error.
  bool resume() {
    return leaving_if_it_throws([this] { return checkpoints_.resume(); });
  }
  /// Throws error: E12 without a checkpoint policy, S16 inside an iteration.
  void save() {
    if (in_iteration_) throw broken_rule<error, rule::S16>();
    checkpoints_.save();
  }
  /// Saves at the next boundary of the run.
  void request_save() { checkpoints_.request_save(); }
  /// As trainer::wait_for_save.
  void wait_for_save() { checkpoints_.wait_for_save(); }
  /// As trainer::best.
  std::optional<best_saved> best() { return checkpoints_.best(); }
  /// As trainer::load_best.
  best_saved load_best() { return checkpoints_.load_best(); }

  // Evaluation.

  /// As a trainer's, with all its values; all parts' models are in evaluation mode meanwhile.
  template <class Batches, class LossOf>
    requires(!std::convertible_to<Batches, std::string>)
  void evaluate_on(Batches batches, LossOf loss_of) {
    evaluator_.template add<recipe_type>(std::string(), std::move(batches), std::move(loss_of));
  }
  /// The same for an evaluation with a name.
  template <class Batches, class LossOf>
  void evaluate_on(std::string name, Batches batches, LossOf loss_of) {
    evaluator_.template add<recipe_type>(std::move(name), std::move(batches), std::move(loss_of));
  }
  /// As trainer::evaluate.
  template <class Batches, class LossOf>
  evaluation_result evaluate(Batches&& batches, LossOf&& loss_of) {
    return evaluator_.evaluate(batches, loss_of);
  }

  // Where it stands.

  /// The position in the data.
  data_cursor const& cursor() const { return progress_.cursor; }
  /// Updates of the run: iterations in which a part applied one, or as many as accumulation takes.
  std::int64_t updates() const { return parts_.updates(); }
  /// Updates of all parts that were skipped.
  std::int64_t skipped() const { return parts_.skipped(); }
  /// Rollbacks of the run so far.
  std::int64_t rollbacks() const { return checkpoints_.rollbacks(); }
  /// The recipe with this run's numbers in it.
  config const& recipe_value() const { return numbers_.value(); }

 private:
  template <class, class>
  friend class part;
  using phase_scope = phase_clock::scope;
  static constexpr bool saves = configured.checkpoint.kind != checkpoint::kind::never;

  run(detail::recipe_numbers const& all, trainer_options options, world_of_ranks const& world)
      : numbers_(all),
        options_(detail::options_of_rank(std::move(options), world.rank())),
        ranks_(world, recipe_value(), options_),
        console_(options_.console, options_.mode, options_.console_every),
        directory_(detail::on_all_ranks(world, [&] { return detail::open_directory(options_, saves); })) {
    require_unbroken<detail::rules_about<recipe_type>>(recipe_value());
    evaluator_.restore(checkpoints_.registered());
  }

  static constexpr bool takes_several = is_of_ranks || std::same_as<recipe_type, detail::inert>;
  /// Rejected (U57) for a recipe of one rank.
  static world_of_ranks taken_world(world_of_ranks const& world) { return detail::world_for<Recipe, takes_several>(world); }
  /// Rejected (U56) where the recipe needs one.
  static void require_world() { detail::require_world<Recipe, is_of_ranks>(); }

  /// What throws on one rank between its updates is for the others to know. `EndsRun`: and it is recorded as the end of the run.
  template <bool EndsRun = false, class Call>
  std::invoke_result_t<Call const&> leaving_if_it_throws(Call const& call) {
    ranks_.begin_call();
    threw_.clear();
    try {
      return call();
    } catch (std::exception const& thrown) {
      threw_ = first_line(thrown);
      ranks_.leave(threw_.c_str());
      if (EndsRun && std::exchange(begun_, false)) log_.left_by_exception(parts_.updates(), threw_);
      throw;
    }
  }

  /// What both loops are: begin() once, then operator++ between iterations.
  template <class Loop>
  class loop_iterator {
   public:
    using value_type = typename Loop::value_type;
    using difference_type = std::ptrdiff_t;
    explicit loop_iterator(Loop& loop) : loop_(&loop) {}
    decltype(auto) operator*() const { return loop_->current(); }
    loop_iterator& operator++() {
      loop_->advance();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(loop_iterator const& at, std::default_sentinel_t) { return at.loop_->is_over(); }

   private:
    Loop* loop_;
  };

  /// For as long as a loop lives.
  class looping {
   public:
    explicit looping(run& of) : run_(of), unwinding_(std::uncaught_exceptions()) {}
    looping(looping const&) = delete;
    looping& operator=(looping const&) = delete;
    ~looping() {
      run_.watch_.end();
      if (std::uncaught_exceptions() > unwinding_) run_.ranks_.leave("an exception has ended the loop of its run");
    }

   private:
    run& run_;
    int unwinding_;  ///< exceptions when it was built
  };

  template <class Batches>
  class loop {
    using source = std::remove_reference_t<Batches>;

   public:
    using batch_type = detail::batch_of<source>;
    using value_type = batch_type;
    loop(run& of, Batches&& batches, std::int64_t epochs)
        : run_(of), batches_(std::forward<Batches>(batches)), epochs_(epochs), signals_(of.options_.stop_on_signals) {}
    auto begin() {
      run_.leaving_if_it_throws([this] {
        run_.begin_run();
        run_.watch_.begin(run_.parts_.updates());
        if (epochs_ == 0) epochs_ = run_.options_.epochs > 0 ? run_.options_.epochs : run_.length() > 0 ? 0 : 1;
        walk_.emplace(batches_, run_.progress_.cursor, run_.device());
        over_ = run_.is_over();
        if (!over_) find();
      });
      return loop_iterator<loop>(*this);
    }
    std::default_sentinel_t end() const { return {}; }

    batch_type& current() { return *batch_; }
    bool is_over() const { return over_; }
    void advance() {
      run_.leaving_if_it_throws([this] {
        batch_.reset();
        bool const goes_on = run_.end_iteration(true, signals_.received());
        if (!goes_on) {
          // Where the length falls on the end of an epoch, that is evaluated and saved as the others are.
          std::int64_t const end = detail::epoch_length(batches_, run_.options_.batches_per_epoch, !run_.ranks_.is_shared());
          if (run_.is_at_end() && run_.progress_.cursor.position == end) static_cast<void>(run_.end_epoch(0));
          return leave();
        }
        if (std::exchange(run_.data_moved_, false)) {
          opened_ = false;
        } else {
          walk_->next();
        }
        find();
      });
    }

   private:
    /// The next batch, in the next epoch where this one is at its end.
    void find() {
      data_cursor& cursor = run_.progress_.cursor;
      for (;;) {
        if (epochs_ > 0 && cursor.epoch >= epochs_) return leave();
        if (!detail::is_repeatable<source> && cursor.epoch > 0) return leave();
        if (!opened_) {
          detail::take_order_of(cursor, batches_, !run_.ranks_.is_shared(), run_.options_.accept_changed_recipe);
          walk_->open([&](std::int64_t position) { run_.hooks_(event::epoch_begin{cursor.epoch, position}); });
          opened_ = true;
        }
        bool const has_batch = walk_->has_batch();
        int const ended_on = run_.first_without_batch(has_batch, signals_);
        if (ended_on < 0) break;
        if (has_batch) {
          run_.data_ended(ended_on);
        } else {
          detail::require_batches(cursor);
        }
        opened_ = false;
        walk_->close();
        bool const goes_on = run_.end_epoch(signals_.received());
        if (std::exchange(run_.data_moved_, false)) continue;
        if (!goes_on) return leave();
      }
      batch_.emplace(walk_->batch());
      run_.begin_iteration();
    }
    void leave() {
      over_ = true;
      walk_->close();
    }

    run& run_;
    Batches batches_;
    std::int64_t epochs_;
    signal_listener signals_;
    std::optional<detail::batch_walk<source>> walk_;
    std::optional<batch_type> batch_;
    bool opened_ = false, over_ = false;
    looping looping_{run_};
  };

  class counted_loop {
   public:
    using value_type = std::int64_t;
    counted_loop(run& of, std::int64_t until) : run_(of), until_(until), signals_(of.options_.stop_on_signals) {
      if (until_ < 1)
        throw error("E12", "iterations() needs a number of them: run.iterations(1000), or options.updates of the run.");
    }
    auto begin() {
      run_.leaving_if_it_throws([this] {
        run_.begin_run();
        run_.watch_.begin(run_.parts_.updates());
        over_ = run_.is_over();
        find();
      });
      return loop_iterator<counted_loop>(*this);
    }
    std::default_sentinel_t end() const { return {}; }
    std::int64_t current() const { return run_.progress_.cursor.consumed; }
    bool is_over() const { return over_; }
    void advance() {
      run_.leaving_if_it_throws([this] {
        over_ = !run_.end_iteration(true, signals_.received());
        run_.data_moved_ = false;
        find();
      });
    }

   private:
    void find() {
      over_ = over_ || run_.progress_.cursor.consumed >= until_;
      // Also at its end: what a rank was asked for in the last iteration is not lost.
      run_.first_without_batch(true, signals_);
      if (over_) {
        if (run_.ranks_.is_shared() && !run_.was_stopped_) run_.goes_on(0);
      } else {
        run_.begin_iteration();
      }
    }
    run& run_;
    std::int64_t until_;
    signal_listener signals_;
    bool over_ = false;
    looping looping_{run_};
  };

  std::int64_t length() const { return length_of(options_, 1); }
  at::DeviceType device() { return parts_.parameters().device; }
  bool is_at_end() const { return (length() > 0 && parts_.updates() >= length()) || progress_.evaluations.is_over(); }

  /// Also where a loop before this one was asked to stop.
  bool is_over() const { return was_stopped_ || is_at_end(); }

  /// Before the first iteration of a loop, or a part's first update.
  void begin_run() {
    bool const resumed = checkpoints_.resume();
    if (begun_) return;
    signal_ = 0;
    was_stopped_ = false;
    if (!resumed && progress_.record.attempts == 0) {
      int const rank = ranks_.world().rank();
      bool const is_seeded = configured.determinism.kind != determinism::kind::off;
      if (is_seeded || rank > 0)
        detail::begin_random(recipe_value().determinism, is_seeded || !parts_.all().empty() ? device() : at::kCPU, rank);
      log_.begin(recipe_value());
      if (!was_seeded_ && rank == 0) log_.not_seeded(parts_.updates());
    }
    log_.write_recipe(recipe_value());
    if (directory_) log_.weaker_promises(parts_.updates());
    if (ranks_.is_shared()) log_.begins_on(parts_.updates(), ranks_.world());
    started_ = options_.clock().now();
    timer_.begin_run();
    tokens_before_ = progress_.record.tokens;
    evaluator_.require_any();
    hooks_(event::run_begin{parts_.updates(), resumed});
    checkpoints_.begin();
    checkpoints_.note_random();
    begun_ = true;
  }
  detail::watched_run watched() {
    evaluator_.before_each_batch([this] { watch_.moved(); });
    phases_.listen(&shown_);
    if (!detail::is_watched(recipe_value().timeout)) return {};
    return detail::watched(recipe_value().timeout, directory_.get(), options_, ranks_.world(), [this] { return shown_.now(); });
  }

  /// Of several ranks they agree here. -1: all have a batch.
  template <class Listener>
  int first_without_batch(bool has_batch, Listener const& signals) {
    detail::asked_of_ranks mine;
    if (ranks_.is_shared()) {
      if (save_signal_.take_request()) checkpoints_.ask();
      mine = {signals.received(), stop_requested_.load(std::memory_order_relaxed), checkpoints_.wants_save()};
    }
    phase_scope const agreeing(phases_, run_phase::update);
    return ranks_.begin(has_batch, mine);
  }
  /// An epoch ends on this rank, which has more of it, because it ends on another one.
  void data_ended(int rank) {
    data_cursor const& cursor = progress_.cursor;
    if (cursor.position == 0)
      throw world_error("E25", "rank " + std::to_string(rank) + " has no batches in epoch " + std::to_string(cursor.epoch) +
                                   ". Look at the data's path and at its filters there.");
    log_.data_ended(parts_.updates(), rank);
  }

  void begin_iteration() {
    if (!in_iteration_) checkpoints_.note_before_parts();
    if (!in_iteration_ && parts_.at_boundary()) {
      timer_.begin_update(progress_.cursor.epoch);
      boundary_cursor_ = progress_.cursor;
    }
    in_iteration_ = true;
    // A checkpoint of the middle of an iteration would go on with its whole batch.
    checkpoints_.mark_incomplete(true);
  }

  /// Between two iterations. False where the loop is to end.
  bool end_iteration(bool consumed, int signal) {
    settle_all();
    if (consumed) {
      ++progress_.cursor.position;
      ++progress_.cursor.consumed;
    }
    in_iteration_ = false;
    watch_.moved();
    if (!parts_.at_boundary()) return true;
    bool const applied = record_iteration();
    checkpoints_.mark_incomplete(false);
    after_update(applied);
    return goes_on(signal);
  }
  bool goes_on(int signal) {
    if (is_at_end()) return false;
    bool stops = false;
    if (ranks_.is_shared()) {
      signal = ranks_.asked().signal;
      stops = ranks_.asked().stops;
      ranks_.forget_asked();
    } else {
      stops = stop_requested_.load(std::memory_order_relaxed);
    }
    if (stops) stop_requested_ = false;
    was_stopped_ = stops || signal != 0;
    if (signal != 0) signal_ = signal;
    // The others' signal may be still on its way to this rank, which is to take part in the last save.
    if (signal != 0 && ranks_.is_shared() && !until_the_end_) until_the_end_.emplace(options_.stop_on_signals);
    return !was_stopped_;
  }
  bool end_epoch(int signal) {
    hooks_(event::epoch_end{progress_.cursor.epoch, progress_.cursor.position});
    ++progress_.cursor.epoch;
    progress_.cursor.position = 0;
    progress_.cursor.in_epoch = false;
    if (!parts_.at_boundary()) return true;
    bool const evaluates = evaluator_.is_due_by_epochs();
    if (evaluates) evaluate_recipe();
    if (saves && (evaluates || configured.checkpoint.kind == checkpoint::kind::every_epochs)) save_at_boundary(false);
    checkpoints_.note_random();
    return goes_on(signal);
  }

  /// One line for all that the parts did since the last boundary. True where something was applied.
  bool record_iteration() {
    std::int64_t applied = 0, rows = 0, tokens = 0, clipped = 0;
    double loss = 0.0, squares = 0.0;
    std::optional<result::skipped> why;
    for (detail::run_part* const one : parts_.all()) {
      auto figures = one->take_figures();
      applied += figures.applied;
      clipped += figures.clipped;
      rows += figures.rows;
      tokens += figures.tokens;
      auto const put = [&](std::string const& name, double value) {
        log_.log(metric<reduce::mean>(one->name() + "/" + name).reduced(world_of_one(), value));
      };
      if (figures.applied > 0) {
        auto const count = static_cast<double>(figures.applied);
        loss += figures.loss / count;
        squares += figures.gradient_norm / count * (figures.gradient_norm / count);
        put("loss", figures.loss / count);
        put("gradient_norm", figures.gradient_norm / count);
        put("lr", one->learning_rate());
        for (auto const& [name, value] : figures.losses) put("loss/" + name, value);
      }
      if (figures.skipped > 0) put("skipped", static_cast<double>(one->skipped()));
      if (figures.why) {
        why = figures.why;
        why->where = one->name() + (why->where.empty() ? "" : ": " + why->where);
        log_.part_skipped(parts_.updates(), one->name(), *figures.why);
      }
    }
    // An iteration in which no part was updated is none of the run's.
    if (applied == 0 && !why) return false;
    parts_.count(applied > 0);
    watch_.updated(parts_.updates());
    auto* const first = parts_.all().front();
    step_outcome const result =
        applied > 0 ? step_outcome(result::updated{loss, std::sqrt(squares), first->learning_rate(), clipped > 0})
                    : step_outcome(*why);
    event::update_end const event{.update = parts_.updates(),
                                  .result = result,
                                  .loss = applied > 0 ? loss : std::numeric_limits<double>::quiet_NaN(),
                                  .gradient_norm = applied > 0 ? std::sqrt(squares) : std::numeric_limits<double>::quiet_NaN(),
                                  .loss_scale = first->loss_scale(),
                                  .tokens = tokens,
                                  .rows = rows};
    begin_console(rows, tokens);
    hooks_(event);
    if (ranks_.times().slowest_ms > 0.0) log_.ranks_took(parts_.updates(), ranks_.times());
    auto const time = timer_.end_update(false);
    log_.update(event,
                {time.epoch, first->learning_rate(), parts_.skipped(), time.milliseconds, checkpoints_.rollbacks(), 0.0, 0.0,
                 std::nullopt, false},
                true);
    if (applied > 0) checkpoints_.updated(loss);
    return applied > 0;
  }
  void begin_console(std::int64_t rows, std::int64_t tokens) {
    if (std::exchange(console_begun_, true)) return;
    console_.begin(length(), tokens != rows ? "tokens" : "rows");
    log_.counts_tokens(tokens != rows);
  }

  void after_update(bool applied) {
    if ((applied && evaluator_.is_due(parts_.updates())) || evaluator_.is_due_by_epochs()) evaluate_recipe();
    save_at_boundary(applied);
    checkpoints_.note_random();
  }
  void save_at_boundary(bool applied) {
    auto const slowest = [this] { return timer_.slowest() / 1e3 + evaluator_.slowest(); };
    phase_scope const saving(phases_, run_phase::saving);
    bool const asked = ranks_.is_shared() ? ranks_.take_save_request() : save_signal_.take_request();
    if (checkpoints_.at_boundary(applied, asked, slowest)) data_moved_ = true;
    watch_.moved();
  }
  void evaluate_recipe() {
    checkpoints_.mark_incomplete(true);
    auto const value = agree(world_of_one(), evaluator_.evaluate_all(), reduce::mean{});
    checkpoints_.evaluated(value);
    for (detail::run_part* const one : parts_.all()) one->evaluated(value.value(), recipe_value().evaluation.larger);
    checkpoints_.mark_incomplete(false);
    bool const ends = progress_.evaluations.evaluated(value, parts_.updates());
    progress_.record.evaluated_epochs = progress_.cursor.epoch;
    if (ends) log_.stopped_early(parts_.updates(), progress_.evaluations.why());
  }

  void settle_all() { parts_.settle(); }
  void drop_open_updates() {
    if (parts_.at_boundary()) return;
    // The others cannot go back to where that update began.
    if (parts_.has_news()) {
      in_iteration_ = true;
      if (saves)
        log_.notice(
            "the end of this run is not saved, because a part has accumulated half of an update and others went on beside it; "
            "its flush() before finish() completes it");
    }
    parts_.drop_updates();
    progress_.cursor = boundary_cursor_;
    checkpoints_.restore_random();
  }

  outcome end_run(outcome const& ended) {
    parts_.verify_replicas();
    // What was left in the middle is not saved: a resume takes that batch again.
    if (!in_iteration_) checkpoints_.end();
    checkpoints_.wait_for_save();
    std::string const words = ending(ended);
    double const seconds = std::chrono::duration<double>(options_.clock().now() - started_).count();
    if (!parts_.all().empty()) {
      console_.summary(summary_rows(words, parts_.updates(), parts_.skipped(), 0.0, progress_.record,
                                    progress_.record.tokens - tokens_before_, seconds, options_.run_directory.string(),
                                    parts_.relief(), log_.timeline()));
    }
    log_.ended(ended, parts_.updates(), words,
               why_finished(length() > 0 && parts_.updates() >= length(), progress_.evaluations, true));
    hooks_(event::run_end{ended});
    begun_ = false;
    in_iteration_ = false;
    stop_requested_ = false;
    ranks_.forget_asked();
    if (until_the_end_) static_cast<void>(until_the_end_->received());
    until_the_end_.reset();
    return ended;
  }

  detail::recipe_numbers numbers_;
  trainer_options options_;
  detail::iterations_of_ranks ranks_;
  hooks hooks_;
  detail::run_parts parts_;
  phase_clock phases_{options_.clock()};
  console console_;
  detail::opened_directory directory_;
  run_progress progress_{recipe_value().evaluation};
  save_listener save_signal_{saves && options_.stop_on_signals};
  run_log log_{directory_.get(), console_, progress_.record, options_};
  detail::evaluator evaluator_{{parts_, recipe_value(), phases_, ranks_.world(), detail::machine_of<Environment>(), progress_,
                                log_, hooks_, options_.clock()}};
  detail::checkpoint_manager checkpoints_{
      recipe_value(), options_, detail::machine_of<Environment>(),   directory_.get(), parts_, progress_,
      log_,           hooks_,   detail::run_of_ranks(ranks_.world())};
  update_timer timer_{options_.clock()};
  data_cursor boundary_cursor_;  ///< before what parts have accumulated
  std::atomic<bool> stop_requested_{false};
  int unwinding_ = std::uncaught_exceptions();  ///< when it was built
  std::string threw_;                           ///< the last exception of the run or of a part, first line
  bool begun_ = false;
  bool in_iteration_ = false;
  bool was_stopped_ = false;
  bool console_begun_ = false;
  bool data_moved_ = false;  ///< by a rollback
  int signal_ = 0;
  std::optional<signal_listener> until_the_end_;  ///< of several ranks that a signal stops
  bool const was_seeded_ = is_seeded(recipe_value().determinism);
  std::int64_t tokens_before_ = 0;
  time_source::time_point started_ = options_.clock().now();
  detail::shown_phase shown_{[this] { watch_.moved(); }};
  detail::run_watch watch_{recipe_value().timeout, watched()};
};

}  // namespace keel::inline KEEL_MODE
