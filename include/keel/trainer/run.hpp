// keel::run, a run of several models. Each part has a model, an optimizer and a recipe; all parts share one directory, one checkpoint, one
// record and one position in the data. The program owns the loop:
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
// A part may make any number of updates, in any order. Records, evaluations, checkpoints, signals and rollbacks are handled between two
// iterations, when no part has an open update. A run-level update is the interval between two boundaries in which at least one part applied
// an update: one iteration, or several with accumulation. Cadences count run-level updates. A skipped update of any part restores the
// registered state and the buffers of all models, so a loss that runs through another part's batch norm leaves no NaN in it.
// On several ranks the run's recipe has keel::shard::replicate, each part has replicate, zero<1> or zero<2>, and the world comes first:
//     keel::run<mine> run{keel::join(), {.run_directory = "gan"}};
// All ranks make the same updates in the same order; events on one rank take effect on all, as in a trainer (collective/README.md).
// Under keel::evaluation::averaged each part that has keel::ema is evaluated with its average. Not supported: saves on an exception (U54),
// and layer statistics. Dry runs, preflight and replays are member functions of a part:
//     d.preflight(batches, d_loss);     d.replay("gan/incidents/attempt-000000123", d_loss);
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <keel/batch_guard/batch_watch.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/core/batch.hpp>
#include <keel/core/error.hpp>
#include <keel/data/batch_source.hpp>
#include <keel/evaluation/evaluate.hpp>
#include <keel/metrics/metric.hpp>
#include <keel/metrics/phase_times.hpp>
#include <keel/recipe/validated.hpp>
#include <keel/rule/reject_call.hpp>
#include <keel/step/checked_world.hpp>
#include <keel/step/recipe_numbers.hpp>
#include <keel/step/require_valid.hpp>
#include <keel/step/typed_step.hpp>
#include <keel/trainer/change_batch.hpp>
#include <keel/trainer/environment.hpp>
#include <keel/trainer/epoch.hpp>
#include <keel/trainer/iteration_sync.hpp>
#include <keel/trainer/options.hpp>
#include <keel/trainer/parts_loop.hpp>
#include <keel/trainer/recipe_alarms.hpp>
#include <keel/trainer/trained_models.hpp>
#include <keel/trainer/training_data.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace keel::inline KEEL_MODE {

template <class Recipe, class Environment>
class part;

/// A run of several parts. It must outlive them. Not thread-safe, except request_stop and request_save. Collective: each rank has one, and
/// all make the same calls in the same order.
template <class Recipe = recipe<>, class Environment = environment>
class run {
  using validated = detail::validated<Recipe, detail::run_entry>;
  static_assert(alignof(typename validated::diagnostics) > 0);

 public:
  /// The recipe.
  using recipe_type = typename validated::recipe;
  /// The recipe's configuration, without the numbers that are supplied at run time.
  static constexpr config configured = detail::kinds_of(config_of<recipe_type>);
  /// The environment, shared by all parts.
  using environment_type = Environment;
  /// True if the recipe is for several ranks.
  static constexpr bool is_distributed = shard::is_distributed(configured.shard);

  /// Throws error (E12) for invalid options, and file_error (E01, E02) for the directory.
  explicit run(trainer_options options = {})
    requires(!detail::leaves_numbers_open<recipe_type>)
      : run(detail::recipe_numbers(config_of<recipe_type>), std::move(options), {}) {
    require_world();
  }
  /// For a recipe that leaves numbers open. Also throws recipe_error (E22).
  explicit run(numbers const& all, trainer_options options = {})
    requires(detail::leaves_numbers_open<recipe_type>)
      : run(detail::recipe_numbers(config_of<recipe_type>, all), std::move(options), {}) {
    require_world();
  }
  /// For a recipe with keel::shard::replicate. Collective over `world`. Throws world_error (E24) if ranks differ in recipe or length.
  template <std::same_as<world_of_ranks> World>
  explicit run(World const& world, trainer_options options = {})
    requires(!detail::leaves_numbers_open<recipe_type>)
      : run(detail::recipe_numbers(config_of<recipe_type>), std::move(options), checked_run_world(world)) {}
  /// Same as the constructor above, for a recipe that leaves numbers open.
  template <std::same_as<world_of_ranks> World>
  run(World const& world, numbers const& all, trainer_options options = {})
    requires(detail::leaves_numbers_open<recipe_type>)
      : run(detail::recipe_numbers(config_of<recipe_type>, all), std::move(options), checked_run_world(world)) {}
  run(run const&) = delete;
  run& operator=(run const&) = delete;

  // The loop.

  /// Iterates over the batches of `count` epochs, from the current position. If `count` is 0, over as many epochs as options.updates needs,
  /// or one. Resumes automatically. Ends early at options.updates, on a signal, on request_stop, or if an alarm or an evaluation stops the
  /// run. `batches` as for trainer::fit; an lvalue must outlive the loop. Throws what resume, evaluations and saves throw, and data_error
  /// (E06) for a batch that cannot be trained on.
  template <class Batches>
  auto epochs(Batches&& batches, std::int64_t count = 0) {
    static_assert(batch_source<std::remove_reference_t<Batches>>,
                  "epochs() takes a range, a LibTorch data loader, or a function of the epoch that returns one.");
    detail::require_epoch_length(batches, options_.batches_per_epoch);
    return batch_loop<Batches>(*this, std::forward<Batches>(batches), count);
  }
  /// Iterates without batches until the run has completed `until` iterations, or options.updates if `until` is 0: `for (std::int64_t i :
  /// run.iterations(1000))`. Throws error (E12) if both are 0.
  auto iterations(std::int64_t until = 0) { return counted_loop(*this, until > 0 ? until : options_.updates); }

  /// Ends the run: saves unsaved progress, closes the record and returns how the run ended. Discards a part's partial accumulation unless
  /// flush() applied it; after a resume its batches are trained on again. If other parts were updated while that accumulation was open, no
  /// final checkpoint is written, and a resume continues from the last one. Throws what a save throws.
  outcome finish() { return loop_.finish(); }
  /// Ends the loop at the next boundary, and prevents later loops. May be called from a hook or from another thread.
  void request_stop() { loop_.request_stop(); }

  // Hooks, record, state.

  /// Adds a hook for events of the run. Its update_end is that of the whole iteration; add hooks for a part's updates to the part.
  template <class Hook>
  void on(Hook hook) {
    loop_.listeners().add(std::move(hook));
  }
  /// Adds a value to this iteration's line of the record.
  void log(reduced_value const& value) { loop_.log(value); }
  template <class... Raw>  // rejected (Y01): a raw value is that of one rank only
  void log(Raw const&...) {
    detail::reject_call<rule::Y01, Raw...>();
  }
  /// Same as trainer::register_state, for targets, replay buffers, environments. A skipped update of any part restores it, unless `scope`
  /// is state_scope::checkpoints.
  template <class State>
  void register_state(std::string name, State& state, state_scope scope = state_scope::updates) {
    loop_.checkpoints().register_state(std::move(name), state, scope);
  }
  /// Same as trainer::migrate.
  void migrate(keel::migrate one) { loop_.checkpoints().migrate(std::move(one)); }

  // Checkpoints.

  /// Loads the newest valid checkpoint; false if there is none. The loop calls it automatically; call it yourself if earlier code needs the
  /// position of the run. Throws checkpoint_error.
  bool resume() {
    bool resumed = false;
    loop_.guard([&] { resumed = loop_.resume(); });
    return resumed;
  }
  /// Throws error: E12 without a checkpoint policy, S16 inside an iteration.
  void save() {
    if (loop_.is_in_iteration()) throw broken_rule<error, rule::S16>();
    loop_.save();
  }
  /// Saves at the next boundary of the run.
  void request_save() { loop_.checkpoints().request_save(); }
  /// Same as trainer::wait_for_save.
  void wait_for_save() { loop_.wait_for_save(); }
  /// Same as trainer::best.
  std::optional<best_saved> best() { return loop_.checkpoints().best(); }
  /// Same as trainer::load_best.
  best_saved load_best() { return loop_.checkpoints().load_best(); }

  // Evaluation.

  /// Same as trainer::evaluate_on. The models of all parts are in evaluation mode during the evaluation.
  template <class Batches, class LossOf>
    requires(!std::convertible_to<Batches, std::string>)
  void evaluate_on(Batches batches, LossOf loss_of) {
    evaluate_on(std::string(), std::move(batches), std::move(loss_of));
  }
  /// Adds an evaluation with a name; otherwise the same as the overload above.
  template <class Batches, class LossOf>
  void evaluate_on(std::string name, Batches batches, LossOf loss_of) {
    loop_.evaluations().template add<recipe_type>(std::move(name), std::move(batches), std::move(loss_of));
  }
  /// Same as trainer::evaluate.
  template <class Batches, class LossOf>
  evaluation_result evaluate(Batches&& batches, LossOf&& loss_of) {
    return loop_.evaluations().evaluate(batches, loss_of);
  }

  // Progress.

  /// The current position in the data.
  data_cursor const& cursor() const { return loop_.cursor(); }
  /// Run-level updates: intervals between two boundaries in which at least one part applied an update.
  std::int64_t updates() const { return models_.updates(); }
  /// Skipped updates of all parts.
  std::int64_t skipped() const { return models_.skipped(); }
  /// Rollbacks of the run so far.
  std::int64_t rollbacks() const { return loop_.checkpoints().rollbacks(); }
  /// The recipe's configuration with this run's numbers.
  config const& recipe_value() const { return numbers_.value(); }

 private:
  template <class, class>
  friend class part;

  run(detail::recipe_numbers const& all, trainer_options options, world_of_ranks const& world)
      : numbers_(all),
        options_(detail::adapt_options_to_rank(std::move(options), world.rank())),
        ranks_(world, recipe_value(), options_),
        loop_(recipe_value(), models_, ranks_, phases_, options_, detail::collect_recipe_alarms<recipe_type>(),
              detail::environment_instance<Environment>()) {
    require_valid<detail::rules_about<recipe_type>>(detail::with_parts(recipe_value()));
  }

  static constexpr bool accepts_world = is_distributed || std::same_as<recipe_type, detail::rejected_recipe>;
  /// Rejected (U57) for a single-rank recipe.
  static world_of_ranks checked_run_world(world_of_ranks const& world) {
    return detail::checked_world<Recipe, accepts_world>(world);
  }
  /// Rejected (U56) if the recipe needs a world.
  static void require_world() { detail::require_world<Recipe, is_distributed>(); }

  /// Single-pass iterator of both loops: operator++ ends an iteration.
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

  template <class Batches>
  class batch_loop {
    using source = std::remove_reference_t<Batches>;

   public:
    using value_type = detail::batch_of<source>;
    batch_loop(run& of, Batches&& batches, std::int64_t epochs)
        : run_(of), batches_(std::forward<Batches>(batches)), epochs_(epochs), program_loop_(of.loop_) {}
    auto begin() {
      run_.loop_.guard([this] {
        program_loop_.begin();
        data_.emplace(batches_, run_.loop_.cursor(), run_.models_.parameters().device, take_);
        program_loop_.start(*data_, epochs_);
      });
      return loop_iterator<batch_loop>(*this);
    }
    std::default_sentinel_t end() const { return {}; }
    value_type& current() { return *batch_; }
    bool is_over() const { return program_loop_.is_over(); }
    void advance() {
      run_.loop_.guard([this] {
        batch_.reset();
        program_loop_.advance();
      });
    }

   private:
    /// Hands the batch to the program.
    struct take_batch {
      batch_loop& to;
      template <class Batch>
      step_outcome operator()(Batch&& batch) const {
        auto& taken = to.batch_.emplace(std::forward<Batch>(batch));
        to.run_.loop_.check_batch([&] { return contents_of(taken); });
        if constexpr (configured.batch_guard.kind == batch_guard::kind::drop) {
          auto finite = detail::drop_nonfinite_rows(
              taken, [this](std::int64_t count, std::int64_t rows) { to.run_.loop_.observer().dropped(count, rows); });
          if (finite) to.batch_.emplace(std::move(*finite));
        }
        return result::accumulated{0, 1};
      }
    };

    run& run_;
    Batches batches_;
    std::int64_t epochs_;
    take_batch take_{*this};
    std::optional<detail::training_data_of<source, take_batch>> data_;
    std::optional<value_type> batch_;
    detail::parts_loop::program_loop
        program_loop_;  ///< last, so that an exception is reported to the other ranks before the source is destroyed
  };

  class counted_loop {
   public:
    using value_type = std::int64_t;
    counted_loop(run& of, std::int64_t until) : run_(of), until_(until), program_loop_(of.loop_) {
      if (until_ < 1)
        throw error("E12",
                    "iterations() needs a length. Pass one, as in run.iterations(1000), or set options.updates of the run.");
    }
    auto begin() {
      run_.loop_.guard([this] {
        program_loop_.begin();
        program_loop_.start(until_);
      });
      return loop_iterator<counted_loop>(*this);
    }
    std::default_sentinel_t end() const { return {}; }
    std::int64_t current() const { return run_.loop_.cursor().consumed; }
    bool is_over() const { return program_loop_.is_over(); }
    void advance() {
      run_.loop_.guard([this] { program_loop_.advance(); });
    }

   private:
    run& run_;
    std::int64_t until_;
    detail::parts_loop::program_loop program_loop_;
  };

  detail::recipe_numbers numbers_;
  trainer_options options_;
  detail::iteration_sync ranks_;
  detail::trained_models models_;
  phase_clock phases_{options_.clock()};
  detail::parts_loop loop_;
};

}  // namespace keel::inline KEEL_MODE
