// What a trainer does with checkpoints: when it saves, what it resumes from, and how it rolls back.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/isposinf.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <atomic>
#include <boost/hana/tuple.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <keel/checkpoint/best_checkpoint.hpp>
#include <keel/checkpoint/load_weights.hpp>
#include <keel/checkpoint/migrate.hpp>
#include <keel/checkpoint/saver.hpp>
#include <keel/collective/agreed.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/memory/timeline.hpp>
#include <keel/recipe/config_of.hpp>
#include <keel/rule/checkpoint.hpp>
#include <keel/rule/nonfinite.hpp>
#include <keel/rule/reject_call.hpp>
#include <keel/trainer/hooks.hpp>
#include <keel/trainer/options.hpp>
#include <keel/trainer/progress.hpp>
#include <keel/trainer/registered_state.hpp>
#include <keel/trainer/resume.hpp>
#include <keel/trainer/rollback.hpp>
#include <keel/trainer/run_directory.hpp>
#include <keel/trainer/run_events.hpp>
#include <keel/trainer/run_log.hpp>
#include <keel/trainer/spoiled.hpp>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace keel {

/// The best checkpoint of a run.
struct best_saved {
  std::filesystem::path path;  ///< its directory, for load_weights and options.resume_from
  double value;                ///< of what it is judged by
  std::int64_t update;
};

namespace detail {

/// A trainer's part; the trainer's own members of the same names document what users call.
template <class Recipe, class Environment, class Step>
class checkpoint_manager {
  static constexpr config configured = config_of<Recipe>;
  using clock = typename Environment::clock;
  using files = typename Environment::files;

 public:
  static constexpr bool saves = configured.checkpoint.kind != checkpoint::kind::never;

  /// All of them outlive this; `directory` is null where the options name none.
  checkpoint_manager(trainer_options const& options, run_directory<files>* directory, Step& step, run_progress& progress,
                     run_log<files>& log, hooks& listeners)
      : options_(options), directory_(directory), step_(step), progress_(progress), log_(log), hooks_(listeners) {
    if constexpr (saves) {
      note_buffers(step.model());
      // An optimizer that cannot be saved is rejected now, and not at the first checkpoint.
      with_optimizer_codec(step.optimizer(), [](auto) {});
      static_cast<void>(safetensors_writer(model_tensors(step.model()), {}));
      directory->warn(directory->checkpoints().prepare());
      saver_ = std::make_unique<saver<files, clock>>(configured.checkpoint, directory->checkpoints(), directory->metrics(),
                                                     [this](save_report const& report) { on_save(report); });
    }
  }
  checkpoint_manager(checkpoint_manager const&) = delete;
  checkpoint_manager& operator=(checkpoint_manager const&) = delete;

  bool resume() {
    if (resumed_) return *resumed_;
    bool loaded = false;
    if constexpr (saves) {
      if (options_.resume) loaded = options_.resume_at ? load_at(*options_.resume_at) : load_newest();
    }
    if (!loaded && directory_) directory_->require_unused(saves);
    if constexpr (saves) {
      if (!loaded && !options_.resume_from.empty()) loaded = load_from(options_.resume_from);
    }
    if (!loaded && !options_.weights_from.empty()) load_weights(step_.model(), options_.weights_from);
    resumed_ = loaded;
    return loaded;
  }

  void save() {
    if (!saves) throw error("E12", "this recipe saves no checkpoints. Add keel::checkpoint::every<500_steps> to it.");
    if (!step_.at_boundary()) throw broken_rule<error, rule::S16>();
    if constexpr (saves) {
      // Inside a hook of a save there is no boundary between the two.
      if (saver_->is_reporting()) return request_save();
      if constexpr (configured.checkpoint.asynchronous) {
        begin_save(save_reason::program);
      } else {
        save_now(save_reason::program);
      }
    }
  }
  void request_save() { save_requested_.store(true, std::memory_order_relaxed); }
  void wait_for_save() {
    if constexpr (saves) saver_->wait();
  }

  template <class State>
  void register_state(std::string name, State& state, state_scope scope = state_scope::updates) {
    if constexpr (!saveable<State>) {
      reject_call<rule::S05, State>();
    } else {
      if (resumed_)
        throw error("E12",
                    "the state " + name + " comes too late: the run has begun. Register it before resume, fit and step.");
      registered_.add(std::move(name), state, scope);
    }
  }
  void migrate(keel::migrate one) { migrations_.push_back(std::move(one)); }

  std::int64_t rollbacks() const { return rollbacks_.count(); }

  std::optional<best_saved> best() {
    if constexpr (!saves) return std::nullopt;
    saver_->wait();
    auto const first = best_.first();
    if (!first) return std::nullopt;
    return best_saved{directory_->checkpoints().path_of_update(first->update), first->value, first->update};
  }
  best_saved load_best() {
    if (!step_.at_boundary()) throw broken_rule<error, rule::S16>();
    auto const found = best();
    if (!found)
      throw error(
          "E12",
          "this run has no best checkpoint. Add keel::checkpoint::keep_best to the recipe, and train until one is saved.");
    step_.settle();
    if constexpr (Step::averages) step_.average().require_parameters_in_place();
    constexpr bool of_average =
        configured.evaluation.averaged && Step::averages && configured.checkpoint.metric == checkpoint::metric::evaluation_loss;
    load_weights(step_.model(), found->path, {.averaged = of_average});
    return *found;
  }

  /// The registered state, for a step or dry run that must leave it as it was.
  registered_states& registered() { return registered_; }

  /// A save is due at the next boundary if there is an update.
  bool is_save_due(std::int64_t updates) {
    if constexpr (!saves) return false;
    return save_requested_.load(std::memory_order_relaxed) || is_due(updates, true);
  }

  /// The run begins: a recipe that rolls back needs something to roll back to.
  void begin() {
    if constexpr (saves) {
      saver_->cadence().restart();
      if constexpr (rule::rolls_back(configured)) {
        if (!*resumed_ && progress_.record.attempts == 0) begin_save(save_reason::scheduled);
      }
    }
  }

  /// At an update boundary: collects finished saves, rolls back, saves. `updated`: the last update was applied;
  /// `slowest_update()`: seconds, of an evaluation too. True if the run rolled back and its data continues elsewhere.
  template <class Seconds>
  bool at_boundary(bool updated, bool asked_by_signal, Seconds const& slowest_update) {
    if constexpr (!saves) return false;
    try {
      saver_->poll();
      if (auto const request = step_.guards().take_rollback_request()) return roll_back(*request);
      asked_ |= asked_by_file() || asked_by_signal;
      save_if_wanted(is_due(step_.updates(), updated));
      warn_of_grace(slowest_update());
    } catch (nonfinite_error const& thrown) {
      // What cannot be saved cannot be trained on either.
      if (configured.nonfinite.kind != nonfinite::kind::rollback || thrown.id() != rule::N13::id) throw;
      return roll_back({thrown.what(), false});
    }
    return false;
  }

  /// The run ends: everything is durable when this returns, or it throws.
  void end() {
    if constexpr (saves) {
      saver_->wait();
      if (step_.at_boundary() && progress_.record.attempts != saved_at_) save_now(save_reason::requested);
    }
  }
  /// The run ends with an exception: waits for a save that is under way, and saves what is not saved yet where the recipe says
  /// so. What it throws is thrown.
  void abandon(std::exception const& thrown) {
    if constexpr (saves) {
      saver_->wait();
      bool const is_spoiled = is_incomplete_ || step_.is_half_updated() || detail::spoils_the_run(thrown);
      bool const has_news = resumed_ && step_.at_boundary() && progress_.record.attempts != saved_at_;
      if (configured.checkpoint.on_exception && has_news && !is_spoiled) {
        restore_random();
        save_now(save_reason::requested);
      }
    }
  }

  /// Of the update that has just been made the record, or an evaluation, is still to come.
  void mark_incomplete(bool now) { is_incomplete_ = now; }

  /// At an update boundary: from here on numbers are drawn for what comes next.
  void note_random() {
    if constexpr (may_drop_an_update) at_boundary_ = random_snapshot::take(step_.parameters().device);
  }
  /// What was drawn for an update that came to nothing is drawn again by the run that goes on.
  void restore_random() {
    if constexpr (may_drop_an_update) {
      if (at_boundary_.taken()) at_boundary_.restore();
    }
  }

  /// An evaluation of the recipe gave this value.
  void evaluated(agreed<double> const& value) { best_wanted_ |= best_.evaluated(value, step_.updates()); }
  /// An update was applied with this loss.
  void updated(double loss) { best_.updated(loss); }

 private:
  /// Called by the saver when a save is finished, failed or dropped.
  void on_save(save_report const& report) {
    log_.saved(report);
    if (report.dropped) saved_at_ = -1;
    if (report.dropped) return;
    if (!report.failure.empty()) take_save_back(report.update);
    if (!report.failure.empty()) return hooks_(event::checkpoint_failed{report.update, report.failure});
    best_.settled(report.update);
    slowest_save_ = std::max(slowest_save_, report.written);
    hooks_(event::checkpoint_saved{report.update, report.saved.path});
  }

  /// The save of this update came to nothing.
  void take_save_back(std::int64_t update) {
    best_.take_back(update);
    saved_at_ = -1;
  }

  /// Notes what was not finite from the start.
  void note_buffers(torch::nn::Module& model) {
    for (auto const& item : model.named_buffers()) {
      if (is_spoiled(item.value())) spoiled_buffers_.insert(item.key());
    }
  }

  /// What a checkpoint holds beside model and optimizer.
  auto parts() {
    return boost::hana::make_tuple(
        state_part<Step>{"step", &step_}, state_part<data_cursor>{"data", &progress_.cursor},
        state_part<run_record>{"record", &progress_.record}, state_part<random_snapshot>{"random", &random_},
        state_part<best_checkpoint>{"best", &best_}, state_part<early_stop>{"evaluation", &progress_.evaluations},
        state_part<rollback_history>{"rollbacks", &rollbacks_}, state_part<registered_states>{"registered", &registered_},
        state_part<memory::timeline>{"memory", &log_.timeline()});
  }

  config present_config() const {
    config value = configured;
    value.run = step_.facts();
    return value;
  }

  /// NaN or infinity in a buffer. Minus infinity is what masks are made of.
  static bool is_spoiled(at::Tensor const& buffer) {
    if (!buffer.defined() || !buffer.is_floating_point() || buffer.layout() != at::kStrided || buffer.numel() == 0)
      return false;
    at::NoGradGuard no_grad;
    return host_value(at::isnan(buffer).logical_or(at::isposinf(buffer)).any()) != 0.0;
  }

  bool is_due(std::int64_t updates, bool updated) {
    bool const by_epochs = configured.checkpoint.kind == checkpoint::kind::every_epochs;
    std::int64_t const units = by_epochs ? progress_.cursor.epoch : progress_.record.tokens;
    return saver_->cadence().is_due(updates, updated, units, progress_.record.saved_units);
  }

  /// `age`: of the parameters, if they are not of now.
  snapshot live(std::optional<std::int64_t> age = {}) {
    step_.settle();
    if constexpr (Step::averages) step_.average().require_parameters_in_place();
    random_ = random_snapshot::take(step_.parameters().device);
    progress_.record.age = age.value_or(progress_.record.attempts);
    snapshot content = take_snapshot(present_config(), step_.model(), step_.optimizer(), step_.parameters(), parts());
    content.generation = rollbacks_.generation();
    if (run_id_.empty()) run_id_ = Environment::new_run_id();
    content.run = run_id_;
    content.attempt = progress_.record.attempts;
    content.best = best_.keeps();
    registered_.require_finite();
    for (auto const& item : step_.model().named_buffers()) {
      if (spoiled_buffers_.count(item.key()) == 0 && is_spoiled(item.value()))
        throw broken_rule<nonfinite_error, rule::N13>("the buffer " + item.key() + " is not finite");
    }
    return content;
  }
  /// A save that is due is scheduled, and so is one that the program's code requests. Requested are what a person or a
  /// signal asks for, the best at once, which stays anyhow, and the first of a process under young_daly, which only measures.
  void save_if_wanted(bool due) {
    bool const by_program = save_requested_.load(std::memory_order_relaxed);
    if (!due && !by_program && !asked_ && !best_wanted_) return;
    // Whoever asked is served when the disk is free.
    if (saver_->drops_now() && !best_wanted_) {
      if (due) saver_->drop(step_.updates());
      if (due) note_saved_units();
      return;
    }
    // What became of the one before decides which is the best, and an update that is under way is of this checkpoint.
    saver_->wait();
    step_.settle();
    bool const measures = configured.checkpoint.kind == checkpoint::kind::young_daly && !saver_->cadence().interval();
    if (due || best_wanted_) best_.judge(world_, step_.updates());
    save_requested_.store(false, std::memory_order_relaxed);
    asked_ = best_wanted_ = false;
    bool const scheduled = due && !measures;
    if (due) note_saved_units();
    begin_save(scheduled ? save_reason::scheduled : by_program ? save_reason::program : save_reason::requested);
  }

  void note_saved_units() {
    bool const by_epochs = configured.checkpoint.kind == checkpoint::kind::every_epochs;
    progress_.record.saved_units = by_epochs ? progress_.cursor.epoch : progress_.record.tokens;
  }

  enum class save_reason : unsigned char { scheduled, program, requested };
  retention keeps(save_reason reason) const {
    return {.newest = configured.checkpoint.keep,
            .every = configured.checkpoint.keep_every,
            .best = best_.keeps(),
            .extra = reason == save_reason::requested,
            .replaces = reason == save_reason::scheduled};
  }
  void begin_save(save_reason reason, std::optional<std::int64_t> age = {}) {
    // What became of the one before decides which is the best.
    saver_->wait();
    remember([&] {
      auto const content = live(age);
      saver_->save(step_.updates(), content, keeps(reason), [this] { require_lock(); });
    });
  }
  void save_now(save_reason reason) {
    saver_->wait();
    remember([&] {
      require_lock();
      auto const content = live();
      saver_->save_now(step_.updates(), content, keeps(reason));
    });
  }
  /// Throws file_error (E01) where another run has taken the directory.
  void require_lock() {
    if (directory_->require_lock()) log_.lock_retaken(step_.updates());
    log_.weaker_promises(step_.updates());
  }
  /// The last save is of these updates, unless it comes to nothing.
  template <class Save>
  void remember(Save const& save) {
    saved_at_ = progress_.record.attempts;
    try {
      save();
    } catch (...) {
      take_save_back(step_.updates());
      throw;
    }
  }

  /// A look at the directory costs a system call, and a second is soon enough.
  bool asked_by_file() {
    auto const now = clock::now();
    if (now - looked_at_ < std::chrono::seconds(1)) return false;
    looked_at_ = now;
    try {
      return directory_->take_save_request();
    } catch (file_error const& thrown) {
      // A look that fails is not a reason to end a run.
      if (!std::exchange(cannot_look_, true)) log_.cannot_look(step_.updates(), thrown.what());
      return false;
    }
  }

  /// Once, where a signal would leave too little time for the open update, a save under way and the last one.
  void warn_of_grace(double slowest_update) {
    constexpr double grace = static_cast<double>(configured.timeout.grace);
    if constexpr (grace > 0.0) {
      double const saving = slowest_save_ * (configured.checkpoint.asynchronous ? 2.0 : 1.0);
      double const needed = slowest_update + saving;
      if (warned_ || slowest_save_ == 0.0 || needed <= grace) return;
      warned_ = true;
      log_.grace_too_short(step_.updates(), grace, needed);
    }
  }

  /// `own`: it is of this very run, which may have changed what it was asked to.
  void apply(snapshot content, std::string const& source, bool own = false) {
    for (auto const& one : migrations_) {
      snapshot const before = content;
      migration change(content);
      one.change(change);
      if (!is_same(before, content)) log_.migrated(one.name, source);
    }
    nlohmann::json const registered =
        content.state.value(nlohmann::json::json_pointer("/run/registered"), nlohmann::json::object());
    if (!options_.accept_changed_recipe) registered_.require_same(registered, source);
    std::string const run_id = content.run;
    accepted_changes accepts{options_.accept_changed_recipe, options_.accept};
    if (options_.resume_at || own) accepts.names.push_back("lr");
    accepts.own_run = own;
    apply_snapshot(std::move(content), present_config(), step_.model(), step_.optimizer(), step_.parameters(), parts(), source,
                   accepts);
    run_id_ = run_id;
    step_.schedule().take_loaded_rates();
  }

  /// From the checkpoint of that update, as a person asked, unless the run did so before and is only started again. Throws
  /// error (E12) where there is none.
  bool load_at(std::int64_t update) {
    auto& store = directory_->checkpoints();
    saver_->wait();
    rollback_history history;
    run_record newest;
    std::int64_t newest_update = -1;
    auto const look = [&](snapshot const& content, std::string const& source) {
      nlohmann::json const fields = content.state.value("run", nlohmann::json::object());
      nlohmann::json const rollbacks = fields.value("rollbacks", nlohmann::json::object());
      nlohmann::json const record = fields.value("record", nlohmann::json::object());
      state_reader past(rollbacks, content.tensors, source, "rollbacks.");
      history.visit(past);
      state_reader counts(record, content.tensors, source, "record.");
      newest.visit(counts);
      newest_update = fields.value(nlohmann::json::json_pointer("/step/updates"), std::int64_t{0});
    };
    load_newest_whole(store, look, log_.on_damaged());
    double const rate = step_.schedule().highest(0);
    if (history.was_restarted(update, rate)) return load_newest();
    auto const all = store.updates();
    if (std::find(all.begin(), all.end(), update) == all.end()) {
      std::string there;
      for (std::int64_t const one : all) there += (there.empty() ? " There are " : ", ") + std::to_string(one);
      throw error("E12", "options.resume_at is " + std::to_string(update) + ", and " + store.path_of(update).string() +
                             " does not exist." + (there.empty() ? " There are no checkpoints" : there) +
                             ". Choose one of these, or leave the option out.");
    }
    checkpoint_id const id(update, !store.exists(update));
    apply(store.load(id), store.path_of(id).string());
    random_.restore();
    history.restarted_at.push_back(update);
    history.restarted_with.push_back(rate);
    history.before_restart = history.count();
    rollbacks_ = std::move(history);
    std::int64_t const age = progress_.record.age;
    progress_.record.attempts = std::max(newest.attempts, progress_.record.attempts);
    progress_.record.lines = directory_->metrics().lines();
    progress_.record.rungs = std::max(newest.rungs, progress_.record.rungs);
    for (checkpoint_id const& one : store.all())
      if (one > id) store.abandon(one);
    forget_lost_best();
    log_.restarted(newest_update, update, rate);
    begin_save(save_reason::scheduled, age);
    saver_->wait();
    return true;
  }

  /// From a checkpoint of any directory, as the beginning of this one's run.
  bool load_from(std::filesystem::path const& directory) {
    detail::require_no_run_directory(directory);
    try {
      apply(read_checkpoint(directory), directory.string());
    } catch (nlohmann::json::exception const& thrown) {
      throw checkpoint_error(
          "E05", directory.string() + ": its state is not what a run saves (" + thrown.what() + "). Take another checkpoint.");
    }
    random_.restore();
    run_id_.clear();  // another run begins
    forget_lost_best();
    progress_.record.lines = 0;
    directory_->metrics().set_aside();
    log_.notice("begins at update " + std::to_string(step_.updates()) + " with " + directory.string() + in_place_of(options_));
    directory_->event("resumed_from", step_.updates(), {{"checkpoint", directory.string()}});
    // From here on this directory stands alone.
    begin_save(save_reason::scheduled, progress_.record.age);
    saver_->wait();
    return true;
  }
  bool load_newest() {
    saver_->wait();
    auto const apply_one = [&](snapshot content, std::string const& source) {
      apply(std::move(content), source);
      log_.notice("resumed at update " + std::to_string(step_.updates()) + " from " + source + in_place_of(options_));
    };
    if (!load_newest_whole(directory_->checkpoints(), apply_one, log_.on_damaged())) return false;
    random_.restore();
    saved_at_ = progress_.record.attempts;
    forget_lost_best();
    directory_->metrics().resume_at(progress_.record.lines);
    directory_->event("resumed", step_.updates());
    return true;
  }
  /// Handles only: a migration that changes values in place has its own reasons to be silent.
  static bool is_same(snapshot const& a, snapshot const& b) {
    auto const equal = [](tensor_map const& x, tensor_map const& y) {
      return std::equal(x.begin(), x.end(), y.begin(), y.end(), [](auto const& one, auto const& other) {
        return one.first == other.first && one.second.is_same(other.second);
      });
    };
    return a.state == b.state && equal(a.model, b.model) && equal(a.optimizer, b.optimizer) && equal(a.tensors, b.tensors);
  }

  /// Returns to a checkpoint that is older than the fault can be, changes what the recipe says, and makes both durable. True if
  /// the data continues elsewhere than where it stands.
  bool roll_back(rollback_request const& request) {
    saver_->wait();
    std::int64_t const attempts = progress_.record.attempts;
    step_.settle();
    rollback_plan const plan = plan_of(configured, request.spike);
    if (rollbacks_.attempts() >= plan.attempts)
      give_up_rolling_back(request, rollbacks_,
                           "the run rolled back " +
                               (rollbacks_.attempts() == 1 ? "once" : std::to_string(rollbacks_.attempts()) + " times") +
                               ", which is this recipe's limit");
    // Where nothing was saved since the last time, that checkpoint led here already.
    std::optional<std::int64_t> before;
    if (rollbacks_.attempts() > 0 && newest_in_turn() == rollbacks_.to.back()) before = rollbacks_.to.back();
    auto found = checkpoint_before(directory_->checkpoints(), attempts - plan.behind, before, log_.on_damaged());
    if (!found) give_up_rolling_back(request, rollbacks_, "there is no checkpoint from before it");

    event::rolled_back const event{step_.updates(), found->first.update, rollbacks_.count() + 1, request.why, plan.change};
    rollback_history history = rollbacks_;
    history.from.push_back(event.from);
    history.to.push_back(event.to);
    data_cursor const here = progress_.cursor;
    run_record const record = progress_.record;
    double const lowered = step_.schedule().lowered();
    apply(found->second, directory_->checkpoints().path_of(found->first).string(), /*own=*/true);
    random_.restore();
    // What an update that was under way came to is of the run that is left.
    step_.guards().take_rollback_request();
    best_wanted_ = false;
    rollbacks_ = std::move(history);
    // The record goes on; only what it compares with is from before.
    progress_.record.attempts = record.attempts;
    progress_.record.lines = record.lines;
    progress_.record.rungs = record.rungs;
    std::int64_t const age = progress_.record.age;
    bool const rewinds_data = plan.change != nonfinite::change::skip_data;
    if (!rewinds_data) {
      progress_.cursor = here;
      progress_.record.evaluated_epochs = record.evaluated_epochs;
      if (configured.checkpoint.kind == checkpoint::kind::every_epochs) progress_.record.saved_units = record.saved_units;
    }
    // The checkpoint may be from before an earlier rollback, and its rate not lowered yet.
    bool const lowers = plan.change == nonfinite::change::lower_lr;
    double const factor = lowered * (lowers ? nonfinite::lowered_by : 1.0) / step_.schedule().lowered();
    if (factor != 1.0) step_.schedule().lower(factor);
    forget_lost_best();
    if (plan.change == nonfinite::change::reseed) reseed(step_.parameters().device, event.count);
    log_.rolled_back(event, to_string(plan.change));
    begin_save(save_reason::scheduled, age);
    saver_->wait();
    hooks_(event);
    return rewinds_data;
  }
  std::int64_t newest_in_turn() {
    auto& store = directory_->checkpoints();
    for (checkpoint_id const& id : store.newest_first()) {
      if (!store.is_extra(id)) return id.update;
    }
    return -1;
  }
  /// What the loaded record calls the best may be gone: removed by hand, or by a version of keel that kept only the newest
  /// best.
  void forget_lost_best() {
    auto const there = directory_->checkpoints().updates();
    for (std::int64_t const update : best_.forget_all_but(there)) log_.best_lost(update);
  }
  /// A seed of the recipe's seed and of how often the run rolled back.
  static void reseed(at::DeviceType device, std::int64_t count) {
    auto const seed = configured.determinism.seed + 0x9e3779b97f4a7c15ull * static_cast<std::uint64_t>(count);
    libtorch::seed_random(at::kCPU, seed);
    if (device != at::kCPU) libtorch::seed_random(device, seed);
  }

  trainer_options const& options_;
  run_directory<files>* directory_;
  Step& step_;
  run_progress& progress_;
  run_log<files>& log_;
  hooks& hooks_;
  [[no_unique_address]] typename Environment::world world_{};

  std::optional<bool> resumed_;  ///< nothing: before the search for a checkpoint
  std::atomic<bool> save_requested_{false};
  random_snapshot random_;
  best_checkpoint best_{configured.checkpoint, configured.evaluation};
  rollback_history rollbacks_;
  std::set<std::string> spoiled_buffers_;  ///< that were so when the run was built
  registered_states registered_;
  std::vector<keel::migrate> migrations_;
  static constexpr bool may_drop_an_update = saves && (configured.checkpoint.on_exception || configured.accumulate.count > 1);
  random_snapshot at_boundary_;
  bool is_incomplete_ = false;
  std::string run_id_;         ///< of the checkpoints; empty until the first
  std::int64_t saved_at_ = 0;  ///< attempts when the last save began that did not fail
  bool asked_ = false;         ///< by a file or a signal
  bool best_wanted_ = false;   ///< the last evaluation was the best so far
  double slowest_save_ = 0.0;  ///< seconds until it was durable
  bool warned_ = false;
  bool cannot_look_ = false;
  typename clock::time_point looked_at_{};
  std::unique_ptr<saver<files, clock>> saver_;  ///< last: a save that is under way ends before what it works with
};

}  // namespace detail

}  // namespace keel
