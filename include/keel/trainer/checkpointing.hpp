// What a trainer does with checkpoints: when it saves, what it resumes from, and how it goes back. The trainer derives from it.
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
#include <functional>
#include <keel/checkpoint/best_checkpoint.hpp>
#include <keel/checkpoint/checkpointer.hpp>
#include <keel/checkpoint/load_weights.hpp>
#include <keel/checkpoint/migrate.hpp>
#include <keel/collective/agreed.hpp>
#include <keel/evaluation/early_stop.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/memory/timeline.hpp>
#include <keel/recipe/config_of.hpp>
#include <keel/rule/checkpoint.hpp>
#include <keel/rule/nonfinite.hpp>
#include <keel/rule/refuse_call.hpp>
#include <keel/trainer/event.hpp>
#include <keel/trainer/progress.hpp>
#include <keel/trainer/registered_state.hpp>
#include <keel/trainer/resume.hpp>
#include <keel/trainer/rollback.hpp>
#include <keel/trainer/run_directory.hpp>
#include <keel/trainer/spoiled.hpp>
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

template <class Trainer, class Recipe, class Environment>
class checkpointing {
  static constexpr config configured = config_of<Recipe>;
  static constexpr bool saves = configured.checkpoint.kind != checkpoint::kind::never;
  using clock = typename Environment::clock;

 public:
  /// Loads the newest good checkpoint of the run directory; false if there is none. fit and the first step do it by themselves.
  /// Throws checkpoint_error if there are checkpoints but none that this run can use.
  bool resume() {
    if (resumed_) return *resumed_;
    auto& options = self().options_;
    bool loaded = false;
    if constexpr (saves) {
      if (options.resume) loaded = options.resume_at ? load_at(*options.resume_at) : load_newest();
    }
    if (!loaded && self().directory_) self().directory_->require_unused(saves);
    if constexpr (saves) {
      if (!loaded && !options.resume_from.empty()) loaded = load_from(options.resume_from);
    }
    if (!loaded && !options.weights_from.empty()) load_weights(self().step_.model(), options.weights_from);
    resumed_ = loaded;
    return loaded;
  }

  /// Saves a checkpoint now, beside a scheduled one of this update if there is one; returns when it is durable, or under
  /// checkpoint::asynchronous when it was copied. Throws error: E12 without a checkpoint policy, S16 inside a window; what a
  /// synchronous save throws. In a hook of checkpoint_saved it asks for the next boundary.
  void save() {
    if (!saves) throw error("E12", "this recipe saves no checkpoints. Add keel::checkpoint::every<500_steps> to it.");
    if (!self().step_.at_boundary()) throw broken_rule<error, rule::S16>();
    if constexpr (saves) {
      // From a hook that hears of a save there is no boundary between the two.
      if (self().saver_->is_telling()) return request_save();
      if constexpr (configured.checkpoint.asynchronous) {
        begin_save(save_reason::program);
      } else {
        save_now(save_reason::program);
      }
    }
  }
  /// Saves if all ranks agreed to.
  void save_if(agreed<bool> const& wanted) {
    if (wanted) save();
  }
  template <class Raw>  // refused (S17): a rank that saves alone waits for the others
  void save_if(Raw const&) {
    detail::refuse_call<rule::S17, Raw>();
  }
  /// Saves a checkpoint at the next step boundary; for hooks, in which no step is at its boundary yet.
  void request_save() { save_requested_.store(true, std::memory_order_relaxed); }
  /// Waits until the last save is durable, and hears of it. A save that failed is an event, as ever.
  void wait_for_save() {
    if constexpr (saves) self().saver_->wait();
  }

  /// Registers state of the program's own: it is in every checkpoint from here on, and comes back with it; a tensor in it
  /// comes back as another one. An update that is skipped or begins again leaves it as it was, unless `scope` says that only
  /// checkpoints bring it back. `state` lists its fields with `void visit(auto& archive)` and outlives the trainer; a field of a
  /// type that no checkpoint holds does not compile (S27). Throws error (E12) once the run was resumed or begun; a tensor that
  /// no file holds is a data_error (E05) of the save.
  template <class State>
  void keep_state(std::string name, State& state, state_scope scope = state_scope::updates) {
    if constexpr (!saveable<State>) {
      detail::refuse_call<rule::S05, State>();
    } else {
      if (resumed_)
        throw error("E12",
                    "the state " + name + " comes too late: the run has begun. Register it before resume, fit and step.");
      registered_.add(std::move(name), state, scope);
    }
  }
  /// Changes checkpoints of older programs before they are compared with this one; in the order in which they were added.
  void migrate(keel::migrate one) { migrations_.push_back(std::move(one)); }

  /// How often this run rolled back.
  std::int64_t rollbacks() const { return rollbacks_.count(); }

  /// The best checkpoint of keep_best, which is durable; nothing before there is one.
  std::optional<best_saved> best() {
    if constexpr (!saves) return std::nullopt;
    self().saver_->wait();
    auto const first = best_.first();
    if (!first) return std::nullopt;
    return best_saved{self().directory_->checkpoints().path_of_update(first->update), first->value, first->update};
  }
  /// Puts the weights of the best checkpoint into the model, for evaluation and export, under evaluation::averaged those of the
  /// moving average, which were judged; training on from them is resume_at's.
  /// Throws error (E12) where there is none, S16 inside an update.
  best_saved load_best() {
    if (!self().step_.at_boundary()) throw broken_rule<error, rule::S16>();
    auto const found = best();
    if (!found)
      throw error(
          "E12",
          "this run has no best checkpoint. Add keel::checkpoint::keep_best to the recipe, and train until one is saved.");
    self().step_.settle();
    if constexpr (Trainer::step_type::averages) self().step_.average().require_parameters_in_place();
    constexpr bool of_average = configured.evaluation.averaged && Trainer::step_type::averages &&
                                configured.checkpoint.metric == checkpoint::metric::evaluation_loss;
    load_weights(self().step_.model(), found->path, {.averaged = of_average});
    return *found;
  }

  /// The registered state, for a step or trial that must leave it as it was.
  registered_states& registered() { return registered_; }

 protected:
  checkpointing() = default;

  /// A save is due at the next boundary if there is an update.
  bool is_save_due(std::int64_t updates) {
    if constexpr (!saves) return false;
    return save_requested_.load(std::memory_order_relaxed) || is_due(updates, true);
  }

  /// The run begins: a recipe that goes back needs something to go back to.
  void begin_saving() {
    if constexpr (saves) {
      self().saver_->cadence().restart();
      if constexpr (rule::rolls_back(configured)) {
        if (!*resumed_ && self().record_.attempts == 0) begin_save(save_reason::scheduled);
      }
    }
  }

  /// Between windows: hears of saves, goes back, saves. True if the run went back and its data continues elsewhere.
  bool keep(outcome const& result, bool asked_by_signal) {
    if constexpr (!saves) return false;
    auto& run = self();
    try {
      run.saver_->poll();
      if (auto const wish = run.step_.guards().take_rollback_wish()) return roll_back(*wish);
      asked_ |= asked_by_file() || asked_by_signal;
      save_if_wanted(is_due(run.step_.updates(), result.is<outcome::updated>()));
      warn_of_grace();
    } catch (nonfinite_error const& thrown) {
      // What cannot be saved cannot be trained on either.
      if (configured.nonfinite.kind != nonfinite::kind::rollback || thrown.id() != rule::N13::id) throw;
      return roll_back({thrown.what(), false});
    }
    return false;
  }

  /// The run ends: everything is durable when this returns, or it throws.
  void end_saving() {
    if constexpr (saves) {
      self().saver_->wait();
      if (self().step_.at_boundary() && self().record_.attempts != saved_at_) save_now(save_reason::requested);
    }
  }
  /// The run ends with an exception: waits for a save that is under way, and saves what is not saved yet where the recipe says
  /// so. What it throws is thrown.
  void abandon_saving(std::exception const& thrown) {
    if constexpr (saves) {
      self().saver_->wait();
      bool const is_spoiled = lacks_verdict_ || self().step_.is_half_updated() || detail::spoils_the_run(thrown);
      bool const has_news = resumed_ && self().step_.at_boundary() && self().record_.attempts != saved_at_;
      if (configured.checkpoint.on_exception && has_news && !is_spoiled) {
        restore_random();
        save_now(save_reason::requested);
      }
    }
  }

  /// Of the update that has just been made the record, or an evaluation, is still to come.
  void lacks_verdict(bool now) { lacks_verdict_ = now; }

  /// At an update boundary: from here on numbers are drawn for what comes next.
  void note_random() {
    if constexpr (may_drop_a_window) at_boundary_ = random_snapshot::take(self().step_.parameters().device);
  }
  /// What was drawn for an update that came to nothing is drawn again by the run that goes on.
  void restore_random() {
    if constexpr (may_drop_a_window) {
      if (at_boundary_.taken()) at_boundary_.restore();
    }
  }

  /// Evaluates. True if that ends the run.
  template <class Evaluate>
  bool evaluated(Evaluate const& evaluate) {
    auto const began = clock::now();
    // Until it has its verdict, the state lacks it, and a run that went on from there would not be this one.
    lacks_verdict_ = true;
    double const value = evaluate();
    slowest_evaluation_ = std::max(slowest_evaluation_, std::chrono::duration<double>(clock::now() - began).count());
    auto const all = agree(self().world(), value, reduce::mean{});
    auto& step = self().step_;
    best_wanted_ |= best_.evaluated(all, step.updates());
    if constexpr (schedule::judges_evaluations(configured.schedule))
      step.schedule().evaluated(all.value(), configured.evaluation.larger);
    lacks_verdict_ = false;
    return early_stop_.evaluated(all, step.updates());
  }

  /// An update was applied with this loss.
  void updated(double loss) { best_.updated(loss); }

  bool ended_early() const { return early_stop_.is_over(); }
  std::string why_ended_early() const { return early_stop_.why(); }

  /// What the store says of a save.
  void on_save(save_report const& report) {
    auto& run = self();
    run.recorder_.saved(report);
    if (report.dropped) saved_at_ = -1;
    if (report.dropped) return;
    if (!report.failure.empty()) take_save_back(report.update);
    if (!report.failure.empty()) return run.hooks_(event::checkpoint_failed{report.update, report.failure});
    best_.settled(report.update);
    slowest_save_ = std::max(slowest_save_, report.written);
    run.hooks_(event::checkpoint_saved{report.update, report.saved.path});
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
    auto& run = self();
    return boost::hana::make_tuple(
        state_part<typename Trainer::step_type>{"step", &run.step_}, state_part<data_cursor>{"data", &run.cursor_},
        state_part<run_record>{"record", &run.record_}, state_part<random_snapshot>{"random", &random_},
        state_part<best_checkpoint>{"best", &best_}, state_part<early_stop>{"evaluation", &early_stop_},
        state_part<rollback_history>{"rollbacks", &rollbacks_}, state_part<registered_states>{"registered", &registered_},
        state_part<memory::timeline>{"memory", &run.recorder_.timeline()});
  }

 private:
  Trainer& self() { return static_cast<Trainer&>(*this); }

  /// NaN or infinity in a buffer. Minus infinity is what masks are made of.
  static bool is_spoiled(at::Tensor const& buffer) {
    if (!buffer.defined() || !buffer.is_floating_point() || buffer.layout() != at::kStrided || buffer.numel() == 0)
      return false;
    at::NoGradGuard no_grad;
    return host_value(at::isnan(buffer).logical_or(at::isposinf(buffer)).any()) != 0.0;
  }

  bool is_due(std::int64_t updates, bool updated) {
    auto const& run = self();
    bool const by_epochs = configured.checkpoint.kind == checkpoint::kind::every_epochs;
    std::int64_t const units = by_epochs ? run.cursor_.epoch : run.record_.tokens;
    return self().saver_->cadence().is_due(updates, updated, units, run.record_.saved_units);
  }

  /// `age`: of the parameters, if they are not of now.
  snapshot live(std::optional<std::int64_t> age = {}) {
    auto& run = self();
    run.step_.settle();
    if constexpr (Trainer::step_type::averages) run.step_.average().require_parameters_in_place();
    random_ = random_snapshot::take(run.step_.parameters().device);
    run.record_.age = age.value_or(run.record_.attempts);
    snapshot content =
        take_snapshot(run.present_config(), run.step_.model(), run.step_.optimizer(), run.step_.parameters(), parts());
    content.generation = rollbacks_.generation();
    if (run_id_.empty()) run_id_ = Trainer::environment_type::new_run_id();
    content.run = run_id_;
    content.attempt = run.record_.attempts;
    content.best = best_.keeps();
    registered_.require_finite();
    for (auto const& item : run.step_.model().named_buffers()) {
      if (spoiled_buffers_.count(item.key()) == 0 && is_spoiled(item.value()))
        throw broken_rule<nonfinite_error, rule::N13>("the buffer " + item.key() + " is not finite");
    }
    return content;
  }
  /// A save that is due is in its turn, and so is one that the program's own code asks for. Out of turn are what a person or a
  /// signal asks for, the best at once, which stays anyhow, and the first of a process under young_daly, which only measures.
  void save_if_wanted(bool due) {
    auto& run = self();
    bool const by_program = save_requested_.load(std::memory_order_relaxed);
    if (!due && !by_program && !asked_ && !best_wanted_) return;
    // Whoever asked is served when the disk is free.
    if (run.saver_->drops_now() && !best_wanted_) {
      if (due) run.saver_->drop(run.step_.updates());
      if (due) note_saved_units();
      return;
    }
    // What became of the one before decides which is the best, and an update that is under way is of this checkpoint.
    run.saver_->wait();
    run.step_.settle();
    bool const measures = configured.checkpoint.kind == checkpoint::kind::young_daly && !run.saver_->cadence().interval();
    if (due || best_wanted_) best_.judge(run.world(), run.step_.updates());
    save_requested_.store(false, std::memory_order_relaxed);
    asked_ = best_wanted_ = false;
    bool const scheduled = due && !measures;
    if (due) note_saved_units();
    begin_save(scheduled ? save_reason::scheduled : by_program ? save_reason::program : save_reason::requested);
  }

  void note_saved_units() {
    auto& run = self();
    bool const by_epochs = configured.checkpoint.kind == checkpoint::kind::every_epochs;
    run.record_.saved_units = by_epochs ? run.cursor_.epoch : run.record_.tokens;
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
    self().saver_->wait();
    remember([&] {
      auto const content = live(age);
      self().saver_->save(self().step_.updates(), content, keeps(reason), [this] { require_lock(); });
    });
  }
  void save_now(save_reason reason) {
    self().saver_->wait();
    remember([&] {
      require_lock();
      auto const content = live();
      self().saver_->save_now(self().step_.updates(), content, keeps(reason));
    });
  }
  /// Throws file_error (E01) where another run has taken the directory.
  void require_lock() {
    auto& run = self();
    if (run.directory_->require_lock()) run.recorder_.lock_retaken(run.step_.updates());
    run.recorder_.weaker_promises(run.step_.updates());
  }
  /// The last save is of these windows, unless it comes to nothing.
  template <class Save>
  void remember(Save const& save) {
    saved_at_ = self().record_.attempts;
    try {
      save();
    } catch (...) {
      take_save_back(self().step_.updates());
      throw;
    }
  }

  /// A look at the directory costs a system call, and nobody waits for less than a second.
  bool asked_by_file() {
    auto const now = clock::now();
    if (now - looked_at_ < std::chrono::seconds(1)) return false;
    looked_at_ = now;
    try {
      return self().directory_->take_save_request();
    } catch (file_error const& thrown) {
      // Nobody is known to have asked, and a look is no reason to end a run.
      if (!std::exchange(cannot_look_, true)) self().recorder_.cannot_look(self().step_.updates(), thrown.what());
      return false;
    }
  }

  /// Once, where a signal would leave too little time for the open update, a save under way and the last one.
  void warn_of_grace() {
    constexpr double grace = static_cast<double>(configured.timeout.grace);
    if constexpr (grace > 0.0) {
      double const saving = slowest_save_ * (configured.checkpoint.asynchronous ? 2.0 : 1.0);
      double const needed = self().timer_.slowest() / 1e3 + slowest_evaluation_ + saving;
      if (warned_ || slowest_save_ == 0.0 || needed <= grace) return;
      warned_ = true;
      self().recorder_.grace_too_short(self().step_.updates(), grace, needed);
    }
  }

  /// `own`: it is of this very run, which may have changed what it was asked to.
  void apply(snapshot content, std::string const& source, bool own = false) {
    auto& run = self();
    for (auto const& one : migrations_) {
      snapshot const before = content;
      migration change(content);
      one.change(change);
      if (!is_same(before, content)) run.recorder_.migrated(one.name, source);
    }
    nlohmann::json const registered =
        content.state.value(nlohmann::json::json_pointer("/run/registered"), nlohmann::json::object());
    if (!run.options_.accept_changed_recipe) registered_.require_same(registered, source);
    std::string const run_id = content.run;
    accepted_changes accepts{run.options_.accept_changed_recipe, run.options_.accept};
    if (run.options_.resume_at || own) accepts.names.push_back("lr");
    accepts.own_run = own;
    apply_snapshot(std::move(content), run.present_config(), run.step_.model(), run.step_.optimizer(), run.step_.parameters(),
                   parts(), source, accepts);
    run_id_ = run_id;
    run.step_.schedule().take_loaded_rates();
  }

  /// From the checkpoint of that update, as a person asked, unless the run did so before and is only started again. Throws
  /// error (E12) where there is none.
  bool load_at(std::int64_t update) {
    auto& run = self();
    auto& store = run.directory_->checkpoints();
    run.saver_->wait();
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
    load_newest_whole(store, look, run.recorder_.passing_over());
    double const rate = run.step_.schedule().highest(0);
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
    std::int64_t const age = run.record_.age;
    run.record_.attempts = std::max(newest.attempts, run.record_.attempts);
    run.record_.lines = run.directory_->metrics().lines();
    run.record_.rungs = std::max(newest.rungs, run.record_.rungs);
    for (checkpoint_id const& one : store.all())
      if (one > id) store.abandon(one);
    forget_lost_best();
    run.recorder_.restarted(newest_update, update, rate);
    begin_save(save_reason::scheduled, age);
    run.saver_->wait();
    return true;
  }

  /// From a checkpoint of any directory, as the beginning of this one's run.
  bool load_from(std::filesystem::path const& directory) {
    auto& run = self();
    detail::require_no_run_directory(directory);
    try {
      apply(read_checkpoint(directory), directory.string());
    } catch (nlohmann::json::exception const& thrown) {
      throw checkpoint_error("E05", directory.string() + ": its state is not what a run saves (" + thrown.what() +
                                        "). Take another checkpoint.");
    }
    random_.restore();
    run_id_.clear();  // another run begins
    forget_lost_best();
    run.record_.lines = 0;
    run.directory_->metrics().set_aside();
    run.console_.notice("begins at update " + std::to_string(run.step_.updates()) + " with " + directory.string() + in_place_of(run.options_));
    run.directory_->event("resumed_from", run.step_.updates(), {{"checkpoint", directory.string()}});
    // From here on this directory stands alone.
    begin_save(save_reason::scheduled, run.record_.age);
    run.saver_->wait();
    return true;
  }
  bool load_newest() {
    auto& run = self();
    run.saver_->wait();
    auto const apply_one = [&](snapshot content, std::string const& source) {
      apply(std::move(content), source);
      run.console_.notice("resumed at update " + std::to_string(run.step_.updates()) + " from " + source + in_place_of(run.options_));
    };
    if (!load_newest_whole(run.directory_->checkpoints(), apply_one, run.recorder_.passing_over())) return false;
    random_.restore();
    saved_at_ = run.record_.attempts;
    forget_lost_best();
    run.directory_->metrics().resume_at(run.record_.lines);
    run.directory_->event("resumed", run.step_.updates());
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
  bool roll_back(rollback_wish const& wish) {
    auto& run = self();
    run.saver_->wait();
    std::int64_t const attempts = run.record_.attempts;
    run.step_.settle();
    rollback_plan const plan = plan_of(configured, wish.spike);
    if (rollbacks_.attempts() >= plan.attempts)
      give_up_rolling_back(wish, rollbacks_,
                           "the run went back " +
                               (rollbacks_.attempts() == 1 ? "once" : std::to_string(rollbacks_.attempts()) + " times") +
                               ", which is this recipe's limit");
    // Where nothing was saved since the last time, that checkpoint led here already.
    std::optional<std::int64_t> before;
    if (rollbacks_.attempts() > 0 && newest_in_turn() == rollbacks_.to.back()) before = rollbacks_.to.back();
    auto found = checkpoint_before(run.directory_->checkpoints(), attempts - plan.behind, before, run.recorder_.passing_over());
    if (!found) give_up_rolling_back(wish, rollbacks_, "there is no checkpoint from before it");

    event::rolled_back const event{run.step_.updates(), found->first.update, rollbacks_.count() + 1, wish.why, plan.change};
    rollback_history history = rollbacks_;
    history.from.push_back(event.from);
    history.to.push_back(event.to);
    data_cursor const here = run.cursor_;
    run_record const record = run.record_;
    double const lowered = run.step_.schedule().lowered();
    apply(found->second, run.directory_->checkpoints().path_of(found->first).string(), /*own=*/true);
    random_.restore();
    // What an update that was under way came to is of the run that is left.
    run.step_.guards().take_rollback_wish();
    best_wanted_ = false;
    rollbacks_ = std::move(history);
    // The record goes on; only what it compares with is from before.
    run.record_.attempts = record.attempts;
    run.record_.lines = record.lines;
    run.record_.rungs = record.rungs;
    std::int64_t const age = run.record_.age;
    bool const data_goes_back = plan.change != nonfinite::change::skip_data;
    if (!data_goes_back) {
      run.cursor_ = here;
      run.record_.evaluated_epochs = record.evaluated_epochs;
      if (configured.checkpoint.kind == checkpoint::kind::every_epochs) run.record_.saved_units = record.saved_units;
    }
    // The checkpoint may be from before an earlier rollback, and its rate not lowered yet.
    bool const lowers = plan.change == nonfinite::change::lower_lr;
    double const factor = lowered * (lowers ? nonfinite::lowered_by : 1.0) / run.step_.schedule().lowered();
    if (factor != 1.0) run.step_.schedule().lower(factor);
    forget_lost_best();
    if (plan.change == nonfinite::change::reseed) reseed(run.step_.parameters().device, event.count);
    run.recorder_.rolled_back(event, to_string(plan.change));
    begin_save(save_reason::scheduled, age);
    run.saver_->wait();
    run.hooks_(event);
    return data_goes_back;
  }
  std::int64_t newest_in_turn() {
    auto& store = self().directory_->checkpoints();
    for (checkpoint_id const& id : store.newest_first()) {
      if (!store.is_extra(id)) return id.update;
    }
    return -1;
  }
  /// What the loaded record calls the best may be gone: removed by hand, or by a version of keel that kept only the newest
  /// best.
  void forget_lost_best() {
    auto const there = self().directory_->checkpoints().updates();
    for (std::int64_t const update : best_.forget_all_but(there)) self().recorder_.best_lost(update);
  }
  /// A seed of the recipe's seed and of how often the run went back.
  static void reseed(at::DeviceType device, std::int64_t count) {
    auto const seed = configured.determinism.seed + 0x9e3779b97f4a7c15ull * static_cast<std::uint64_t>(count);
    libtorch::seed_random(at::kCPU, seed);
    if (device != at::kCPU) libtorch::seed_random(device, seed);
  }

 protected:
  std::optional<bool> resumed_;

 private:
  std::atomic<bool> save_requested_{false};
  random_snapshot random_;
  best_checkpoint best_{configured.checkpoint, configured.evaluation};
  early_stop early_stop_{configured.evaluation};
  rollback_history rollbacks_;
  std::set<std::string> spoiled_buffers_;  ///< that were so when the run was built
  registered_states registered_;
  std::vector<keel::migrate> migrations_;
  static constexpr bool may_drop_a_window =
      saves && (configured.checkpoint.on_exception || configured.accumulate.count > 1);
  random_snapshot at_boundary_;
  bool lacks_verdict_ = false;
  std::string run_id_;          ///< of the checkpoints; empty until the first
  std::int64_t saved_at_ = 0;  ///< attempts when the last save began that did not fail
  bool asked_ = false;         ///< by a file or a signal
  bool best_wanted_ = false;   ///< the last evaluation was the best so far
  double slowest_save_ = 0.0;  ///< seconds until it was durable
  double slowest_evaluation_ = 0.0;
  bool warned_ = false;
  bool cannot_look_ = false;
  typename clock::time_point looked_at_{};
};

}  // namespace keel
