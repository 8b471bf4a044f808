// Definitions for checkpoint_manager.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/isposinf.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <keel/checkpoint/load_newest_valid.hpp>
#include <keel/checkpoint/rank_files.hpp>
#include <keel/checkpoint/read_checkpoint.hpp>
#include <keel/checkpoint/saver.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/rule/checkpoint.hpp>
#include <keel/rule/nonfinite.hpp>
#include <keel/trainer/checkpoint_manager.hpp>
#include <keel/trainer/deferred_parts.hpp>
#include <keel/trainer/describe_run.hpp>
#include <keel/trainer/resume.hpp>
#include <keel/trainer/rollback.hpp>
#include <keel/trainer/run_directory.hpp>
#include <keel/trainer/run_ending_errors.hpp>
#include <keel/trainer/run_events.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY checkpoint_manager::checkpoint_manager(config const& recipe, trainer_options const& options,
                                                 environment const& machine, run_directory* directory, trained_models& models,
                                                 run_progress& progress, run_log& log, hooks& listeners,
                                                 checkpoint_collectives ranks)
    : recipe_(recipe),
      options_(options),
      machine_(machine),
      directory_(directory),
      models_(models),
      progress_(progress),
      log_(log),
      hooks_(listeners),
      ranks_(std::move(ranks)),
      best_(recipe.checkpoint, recipe.evaluation),
      deferred_parts_(std::make_unique<deferred_parts>()) {
  if (!saves_) return;
  require_saveable(models_);
  if (!ranks_.owns_checkpoints()) {
    if (directory != nullptr) writer_ = std::make_unique<rank_writer>(directory->files(), ranks_.rank());
    return;
  }
  directory->warn(directory->checkpoints().prepare());
  saver_ = std::make_unique<saver>(recipe.checkpoint, directory->checkpoints(), directory->metrics(), options.clock(),
                                   [this](save_report const& report) { on_save(report); });
}

KEEL_BODY checkpoint_manager::~checkpoint_manager() {
  if (ranks_.is_shared() && (std::uncaught_exceptions() > 0 || ranks_.may_be_broken())) may_have_lost_ranks_ = true;
}

KEEL_BODY void checkpoint_manager::require_saveable(trained_models& models) {
  record_nonfinite_buffers(models.model());
  // Reject an optimizer that cannot be saved now rather than at the first checkpoint.
  for (auto const& one : models.trained()) with_optimizer_codec(*one.optimizer, [](auto) {});
  slice_map slices;
  static_cast<void>(safetensors_writer(live_model_tensors(models.model(), models.trained(), slices), {}));
}

KEEL_BODY void checkpoint_manager::part_added(std::string const& name, trained_models& alone) {
  if (!saves_) return;
  require_saveable(alone);
  if (!resumed_) return;
  bool const may_roll_back = models_.rollback_distance() > 0;
  std::vector<state_part> const parts{state_part::of("step", alone)};
  snapshot initial_state;
  if (may_roll_back) {
    config const present = current_config();
    initial_state = snapshot_buffers().copy(take_snapshot(present, alone.model(), alone.trained(), parts));
  }
  if (deferred_parts::waiting_part const* const waiting = deferred_parts_->find(name)) {
    models_.match_groups(waiting->content.state);
    config const present = current_config();
    apply_snapshot(waiting->content, present, alone.model(), alone.trained(), parts, waiting->source,
                   accepted(snapshot_use::resume));
    alone.adopt_loaded_rates();
    if (before_parts_.taken()) before_parts_.restore();
  } else {
    // Save soon, so that there is a checkpoint with the new part to roll back to.
    is_save_requested_ |= may_roll_back;
  }
  deferred_parts_->part_created(name, std::move(initial_state));
}

KEEL_BODY void checkpoint_manager::capture_random_before_parts() {
  if (deferred_parts_->is_any_waiting()) before_parts_ = random_snapshot::take(models_.parameters().device);
}

KEEL_BODY bool checkpoint_manager::resume() {
  if (resumed_) return *resumed_;
  bool loaded = false;
  if (saves_) {
    if (options_.resume) loaded = options_.resume_at ? load_checkpoint_of(*options_.resume_at) : load_newest();
  }
  if (!loaded && directory_) directory_->require_unused(saves_);
  if (saves_) {
    if (!loaded && !options_.resume_from.empty()) loaded = load_from(options_.resume_from);
  }
  if (!loaded && !options_.weights_from.empty()) load_model_weights(options_.weights_from, {});
  resumed_ = loaded;
  capture_random_before_parts();
  return loaded;
}

KEEL_BODY void checkpoint_manager::save() {
  if (!saves_) throw error("E12", "this recipe saves no checkpoints. Add keel::checkpoint::every<500_steps> to it.");
  if (!models_.at_boundary()) throw broken_rule<error, rule::S16>();
  if (saves_) {
    // Inside a hook that a save calls, or before the record is complete, defer to the next boundary.
    if ((saver_ && saver_->is_reporting()) || is_incomplete_) return request_save();
    if (recipe_.checkpoint.asynchronous) {
      begin_save(save_reason::program);
    } else {
      save_now(save_reason::program);
    }
  }
}

KEEL_BODY void checkpoint_manager::wait_for_save() { wait_for_files(); }

KEEL_BODY void checkpoint_manager::wait_for_files() {
  if (saver_) saver_->wait();
  if (writer_) writer_->wait();
}

KEEL_BODY std::optional<best_saved> checkpoint_manager::best() {
  if (!saves_) return std::nullopt;
  std::optional<best_saved> found;
  nlohmann::json const there = ranks_.on_rank0([&]() -> nlohmann::json {
    saver_->wait();
    auto const first = best_.first();
    if (!first) return nullptr;
    found = best_saved{directory_->checkpoints().path_of_update(first->update), first->value, first->update};
    return {{"path", found->path.string()}, {"value", found->value}, {"update", found->update}};
  });
  if (!found && !there.is_null())
    found = best_saved{there.at("path").get<std::string>(), there.at("value"), there.at("update")};
  return found;
}

KEEL_BODY best_saved checkpoint_manager::load_best() {
  if (!models_.at_boundary()) throw broken_rule<error, rule::S16>();
  auto const found = best();
  if (!found)
    throw error(
        "E12", "this run has no best checkpoint. Add keel::checkpoint::keep_best to the recipe, and train until one is saved.");
  models_.settle();
  models_.require_average_swapped_out();
  bool const of_average = recipe_.evaluation.averaged && !models_.averages().empty() &&
                          recipe_.checkpoint.metric == checkpoint::metric::evaluation_loss;
  load_model_weights(found->path, {.averaged = of_average});
  return *found;
}

KEEL_BODY void checkpoint_manager::load_model_weights(std::filesystem::path const& from, weights_choice const& choice) {
  models_.end_passes();
  slice_map slices;
  tensor_map const own = live_model_tensors(models_.model(), models_.trained(), slices);
  load_weights(own, slices, from, choice);
}

KEEL_BODY bool checkpoint_manager::is_save_due(std::int64_t updates) {
  if (!saves_) return false;
  // With several ranks, ignore rank-local inputs, such as the clock and save requests.
  if (ranks_.is_shared()) return is_due_by_count(updates, true);
  return save_requested_.load(std::memory_order_relaxed) || is_due(updates, true);
}

KEEL_BODY bool checkpoint_manager::should_request_save() {
  if (!saves_) return false;
  if (saver_ && take_save_request_file()) is_save_requested_ = true;
  using checkpoint::kind;
  bool const by_clock = recipe_.checkpoint.kind == kind::every_seconds || recipe_.checkpoint.kind == kind::young_daly;
  is_save_requested_by_clock_ = ranks_.is_shared() && saver_ && by_clock && is_due(models_.updates() + 1, true);
  return is_save_requested_by_clock_ || is_save_requested_ || save_requested_.load(std::memory_order_relaxed);
}

KEEL_BODY void checkpoint_manager::begin() {
  if (saves_) {
    may_have_lost_ranks_ = false;
    if (saver_) saver_->cadence().restart();
    if (models_.rollback_distance() > 0) {
      if (!resumed_.value_or(false) && progress_.record.attempts == 0) begin_save(save_reason::scheduled);
    }
  }
}

KEEL_BODY bool checkpoint_manager::handle_boundary(bool updated, bool asked, std::function<double()> const& slowest_update) {
  if (!saves_) return false;
  deferred_parts_->require_none_waiting();
  try {
    if (saver_) saver_->poll();
    if (writer_) writer_->poll();
    config by = recipe_;
    if (auto const request = models_.take_rollback_request(by)) return roll_back(*request, by);
    // With several ranks the file is checked before their agreement, in should_request_save.
    save_if_due(updated, asked || (!ranks_.is_shared() && take_save_request_file()));
    if (saver_) warn_if_grace_too_short(slowest_update());
  } catch (nonfinite_error const& thrown) {
    // A state that cannot be saved because it is broken is not worth training on, so roll back.
    if (recipe_.nonfinite.kind != nonfinite::kind::rollback || thrown.id() != rule::N13::id) throw;
    return roll_back({thrown.what(), false, reason::nonfinite_buffer}, recipe_);
  }
  return false;
}

KEEL_BODY void checkpoint_manager::end() {
  if (saves_) {
    wait_for_files();
    bool const has_new_results =
        ranks_.rank0_decides([this] { return models_.at_boundary() && progress_.record.attempts != saved_at_; });
    if (has_new_results) save_now(save_reason::requested);
  }
}

KEEL_BODY void checkpoint_manager::save_after(std::exception const& thrown, bool is_failure_collective) {
  if (saves_) {
    if (!is_failure_collective || ranks_.may_be_broken()) may_have_lost_ranks_ = true;
    if (saver_) saver_->wait();
    bool const is_unsaveable = is_incomplete_ || models_.is_half_updated() || detail::invalidates_run(thrown);
    bool const may_save = resumed_ && models_.at_boundary() && !is_unsaveable;
    if (!recipe_.checkpoint.on_exception || !is_failure_collective || !ranks_.all_ranks_agree(may_save)) return;
    if (ranks_.rank0_decides([this] { return progress_.record.attempts != saved_at_; })) {
      restore_random();
      save_now(save_reason::requested);
    }
  }
}

KEEL_BODY void checkpoint_manager::capture_random_state() {
  if (may_drop_an_update()) boundary_random_ = random_snapshot::take(models_.parameters().device);
}

KEEL_BODY void checkpoint_manager::restore_random() {
  if (may_drop_an_update()) {
    if (boundary_random_.taken()) boundary_random_.restore();
  }
}

KEEL_BODY void checkpoint_manager::on_save(save_report const& report) {
  log_.saved(report);
  if (report.dropped) saved_at_ = -1;
  if (report.dropped) return;
  if (!report.failure.empty()) revert_failed_save(report.update);
  if (!report.failure.empty()) return hooks_(event::checkpoint_failed{report.update, report.failure});
  best_.settled(report.update);
  slowest_save_ = std::max(slowest_save_, report.written);
  hooks_(event::checkpoint_saved{report.update, report.saved.path});
}

KEEL_BODY void checkpoint_manager::revert_failed_save(std::int64_t update) {
  best_.revert(update);
  saved_at_ = -1;
}

KEEL_BODY void checkpoint_manager::record_nonfinite_buffers(torch::nn::Module& model) {
  for (auto const& item : model.named_buffers()) {
    if (holds_nan_or_infinity(item.value())) initially_nonfinite_buffers_.insert(item.key());
  }
}

KEEL_BODY std::vector<state_part> checkpoint_manager::parts() {
  std::vector<state_part> all;
  all.push_back(state_part::of("step", models_));
  all.push_back(state_part::of("data", progress_.cursor));
  all.push_back(state_part::of("record", progress_.record));
  all.push_back(state_part::of("random", random_));
  all.push_back(state_part::of("best", best_));
  all.push_back(state_part::of("evaluation", progress_.evaluations));
  all.push_back(state_part::of("rollbacks", rollbacks_));
  all.push_back(state_part::of("registered", registered_));
  all.push_back(state_part::of("memory", log_.timeline()));
  return all;
}

KEEL_BODY std::int64_t checkpoint_manager::last_kept_attempt() const {
  run_record const& record = progress_.record;
  return record.interval.is_open() ? record.interval.begins_after_attempt() : record.attempts;
}

KEEL_BODY std::function<void(std::int64_t, std::string const&)> checkpoint_manager::on_damaged() {
  return [this](std::int64_t update, std::string const& message) { log_.emit("damaged", update, {{"message", message}}); };
}

KEEL_BODY config checkpoint_manager::current_config() const {
  config value = recipe_;
  value.run = models_.facts();
  return value;
}

KEEL_BODY bool checkpoint_manager::holds_nan_or_infinity(at::Tensor const& buffer) {
  if (!buffer.defined() || !buffer.is_floating_point() || buffer.layout() != at::kStrided || buffer.numel() == 0) return false;
  at::NoGradGuard no_grad;
  return host_value(at::isnan(buffer).logical_or(at::isposinf(buffer)).any()) != 0.0;
}

KEEL_BODY bool checkpoint_manager::is_due(std::int64_t updates, bool updated) const {
  bool const by_epochs = recipe_.checkpoint.kind == checkpoint::kind::every_epochs;
  std::int64_t const units = by_epochs ? progress_.cursor.epoch : progress_.record.tokens;
  if (!saver_)
    return checkpoint_cadence(recipe_.checkpoint, options_.clock())
        .is_due(updates, updated, units, progress_.record.saved_units);
  return saver_->cadence().is_due(updates, updated, units, progress_.record.saved_units);
}

KEEL_BODY bool checkpoint_manager::is_due_by_count(std::int64_t updates, bool updated) const {
  using checkpoint::kind;
  auto const by = recipe_.checkpoint.kind;
  return (by == kind::every_steps || by == kind::every_epochs || by == kind::every_tokens) && is_due(updates, updated);
}

KEEL_BODY std::string const& checkpoint_manager::run_id() {
  if (run_id_.empty()) run_id_ = machine_.new_run_id();
  return run_id_;
}

KEEL_BODY snapshot checkpoint_manager::take_snapshot_now(std::optional<std::int64_t> produced_by_attempt) {
  models_.settle();
  models_.require_average_swapped_out();
  random_ = random_snapshot::take(models_.parameters().device);
  progress_.record.produced_by_attempt = produced_by_attempt.value_or(progress_.record.attempts);
  config const present = current_config();
  snapshot content = take_snapshot(present, models_.model(), models_.trained(), parts());
  content.generation = rollbacks_.generation();
  content.run = run_id();
  content.attempt = progress_.record.attempts;
  content.best = best_.keeps();
  if (!options_.fingerprints.empty()) content.state["fingerprints"] = options_.fingerprints;
  deferred_parts_->write(content);
  registered_.require_finite();
  for (auto const& item : models_.model().named_buffers()) {
    if (initially_nonfinite_buffers_.count(item.key()) == 0 && holds_nan_or_infinity(item.value()))
      throw broken_rule<nonfinite_error, rule::N13>("the buffer " + item.key() + " is not finite");
  }
  return content;
}

KEEL_BODY nlohmann::ordered_json checkpoint_manager::describe_live_state() {
  optimizer_shards::scope const shards(models_.trained().front().shards);
  return describe_state(models_.model(), models_.optimizer(), models_.parameters(), models_.whole_tensor_access());
}

KEEL_BODY snapshot checkpoint_manager::before_update(random_snapshot const& random, data_cursor const& cursor) {
  random_ = random;
  data_cursor const now = std::exchange(progress_.cursor, cursor);
  config const present = current_config();
  snapshot content = take_snapshot(present, models_.model(), models_.trained(), parts());
  progress_.cursor = now;
  if (!content.model_slices.empty())
    throw error("E12",
                "under keel::shard::zero<3> a rank has only its slices of the parameters, so it cannot write an incident that "
                "can be replayed. Use keel::shard::zero<2> to keep incidents.");
  content.generation = rollbacks_.generation();
  content.attempt = progress_.record.attempts;
  // Save it even though values may be non-finite: the purpose of this snapshot is to reproduce a non-finite update.
  content.finite.clear();
  deferred_parts_->write(content);
  return content;
}

KEEL_BODY void checkpoint_manager::apply_for_replay(snapshot content, std::string const& source, bool exactly) {
  std::string const run = run_id_;
  apply(std::move(content), source, exactly ? snapshot_use::restore_exactly : snapshot_use::replay);
  run_id_ = run;
}

KEEL_BODY void checkpoint_manager::save_if_due(bool updated, bool asked) {
  bool const here = is_save_requested_ || save_requested_.load(std::memory_order_relaxed) || is_due(models_.updates(), updated);
  // With several ranks, ignore rank-local inputs, such as the clock and save requests.
  bool const wanted = ranks_.is_shared() ? is_due_by_count(models_.updates(), updated) : here;
  if (!wanted && !asked && !is_best_pending_) return;
  bool const by_program = save_requested_.load(std::memory_order_relaxed);
  // Rank 0 decides, because it has the clock and the saver.
  enum : int { drops, is_scheduled, is_of_program, is_requested };
  bool due = false;
  int const plan = ranks_.on_rank0([&]() -> nlohmann::json {
    due = is_due(models_.updates(), updated);
    // The clock requested a save at this update, but the update was skipped. Other requests are repeated.
    if (is_save_requested_by_clock_ && !here && !is_best_pending_) return 2 * drops;
    // A request stays pending until the saver is free.
    if (saver_->would_drop() && !is_best_pending_) {
      is_save_requested_ |= asked;
      if (due) saver_->drop(models_.updates());
      return 2 * drops + (due ? 1 : 0);
    }
    // The result of the previous save decides which checkpoint is the best. A pending update is settled below, because this save includes
    // it.
    saver_->wait();
    bool const measures = recipe_.checkpoint.kind == checkpoint::kind::young_daly && !saver_->cadence().interval();
    int const why = due && !measures ? is_scheduled : by_program ? is_of_program : is_requested;
    return 2 * why + (due ? 1 : 0);
  });
  due = plan % 2 == 1;
  if (due) record_saved_units();
  if (plan / 2 == drops) return;
  models_.settle();
  if (due || is_best_pending_) best_.judge(world_of_one(), models_.updates());
  save_requested_.store(false, std::memory_order_relaxed);
  is_save_requested_ = is_best_pending_ = false;
  begin_save(plan / 2 == is_scheduled    ? save_reason::scheduled
             : plan / 2 == is_of_program ? save_reason::program
                                         : save_reason::requested);
}

KEEL_BODY void checkpoint_manager::record_saved_units() {
  bool const by_epochs = recipe_.checkpoint.kind == checkpoint::kind::every_epochs;
  progress_.record.saved_units = by_epochs ? progress_.cursor.epoch : progress_.record.tokens;
}

KEEL_BODY retention checkpoint_manager::retention_for(save_reason reason) const {
  return {.newest = recipe_.checkpoint.keep,
          .every = recipe_.checkpoint.keep_every,
          .best = best_.keeps(),
          .rollback_distance = models_.rollback_distance(),
          .requested = reason == save_reason::requested,
          .replaces = reason == save_reason::scheduled};
}

KEEL_BODY void checkpoint_manager::begin_save(save_reason reason, std::optional<std::int64_t> produced_by_attempt) {
  // The result of the previous save decides which checkpoint is the best.
  wait_for_files();
  record_save([&] {
    if (ranks_.is_shared()) return save_collectively(reason, produced_by_attempt, false);
    saver_->save(models_.updates(), take_snapshot_now(produced_by_attempt), retention_for(reason), [this] { require_lock(); });
  });
}

KEEL_BODY void checkpoint_manager::save_now(save_reason reason) {
  wait_for_files();
  record_save([&] {
    if (ranks_.is_shared()) return save_collectively(reason, {}, true);
    require_lock();
    saver_->save_now(models_.updates(), take_snapshot_now(), retention_for(reason));
  });
}

KEEL_BODY void checkpoint_manager::save_collectively(save_reason reason, std::optional<std::int64_t> produced_by_attempt,
                                                     bool is_synchronous) {
  using kind = saver::at_once;
  retention const keep = retention_for(reason);
  auto const nothing = [] { return nlohmann::json(); };
  std::optional<pending_checkpoint> opened;
  try {
    nlohmann::json const place = ranks_.on_rank0([&]() -> nlohmann::json {
      opened = saver_->open(models_.updates(), run_id(), machine_.new_run_id(), keep, is_synchronous ? kind::yes : kind::no,
                            [this] { require_lock(); });
      if (!opened) return nullptr;
      return opened->directory.string();
    });
    if (place.is_null()) return;
    std::filesystem::path const directory = place.get<std::string>();
    if (!can_all_ranks_write_) {
      bool const all_can = ranks_.all_ranks_agree(saver_ || (writer_ && writer_->can_write(directory)));
      bool const all_seen =
          ranks_.rank0_decides([&] { return directory_->checkpoints().is_visible_to_ranks(*opened, ranks_.size()); });
      can_all_ranks_write_ = all_can && all_seen;
    }
    bool const all_write = *can_all_ranks_write_;
    models_.end_passes();
    using writers = checkpoint_collectives::writers;
    snapshot const content = ranks_.gather([&] { return take_snapshot_now(produced_by_attempt); }, models_.model(),
                                           all_write ? writers::all : writers::rank0);
    int const ranks = all_write ? ranks_.size() : 1;
    using std::chrono::milliseconds;
    milliseconds const short_while(2000), long_while = std::max(ranks_.timeout() / 2, short_while);
    auto const patience = [this, short_while, long_while] { return may_have_lost_ranks_ ? short_while : long_while; };
    if (recipe_.checkpoint.asynchronous && !is_synchronous) {
      if (writer_ && all_write) writer_->begin(directory, content);
      ranks_.all_ranks_agree(true);
      ranks_.on_rank0([&] {
        saver_->begin(*opened, content, keep, ranks, patience);
        opened.reset();
        return nothing();
      });
      return;
    }
    std::string failure;
    if (writer_ && all_write) {
      try {
        writer_->write(directory, content);
      } catch (file_error const& thrown) {
        failure = without_id(thrown.what());
      }
    }
    if (!ranks_.rank0_decides([&] { return saver_->write_files(*opened, content); })) return;
    std::string const failed = ranks_.exchange_failure_message(failure);
    ranks_.on_rank0([&] {
      if (failed.empty()) {
        saver_->commit_checkpoint(*opened, keep, ranks, patience);
      } else {
        saver_->fail(*opened, failed);
      }
      return nothing();
    });
  } catch (...) {
    // Remove the incomplete checkpoint and rethrow.
    if (opened) saver_->discard(*opened);
    throw;
  }
}

KEEL_BODY void checkpoint_manager::require_lock() {
  if (directory_->require_lock()) log_.emit("lock_retaken", models_.updates());
  log_.log_weaker_guarantees(models_.updates());
}

template <class Save>
void checkpoint_manager::record_save(Save const& save) {
  saved_at_ = progress_.record.attempts;
  try {
    save();
  } catch (...) {
    revert_failed_save(models_.updates());
    throw;
  }
}

KEEL_BODY bool checkpoint_manager::take_save_request_file() {
  auto const now = options_.clock().now();
  if (now - looked_at_ < std::chrono::seconds(1)) return false;
  looked_at_ = now;
  try {
    return directory_->take_save_request();
  } catch (file_error const& thrown) {
    // Failing to read the request file must not end the run; log it once.
    if (!std::exchange(is_request_check_reported_, true))
      log_.emit("cannot_look", models_.updates(), {{"message", thrown.what()}});
    return false;
  }
}

KEEL_BODY void checkpoint_manager::warn_if_grace_too_short(double slowest_update) {
  double const grace = static_cast<double>(recipe_.timeout.grace);
  if (grace > 0.0) {
    double const saving = slowest_save_ * (recipe_.checkpoint.asynchronous ? 2.0 : 1.0);
    double const needed = slowest_update + saving;
    if (warned_ || slowest_save_ == 0.0 || needed <= grace) return;
    warned_ = true;
    std::string const message =
        formatted("the grace period after a signal is %.0f s, but an update and its checkpoint take %.1f s", grace, needed);
    log_.emit("grace_too_short", models_.updates(), {{"message", message}});
  }
}

KEEL_BODY void checkpoint_manager::apply(snapshot content, std::string const& source, snapshot_use use) {
  std::int64_t const ranks = checkpoint_world_size(content);
  is_checkpoint_of_this_rank_ = select_rank_state(content, ranks_.rank());
  if (ranks != ranks_.size() && (use == snapshot_use::resume || use == snapshot_use::roll_back))
    log_.other_ranks(source, ranks, ranks_.size());
  for (auto const& one : migrations_) {
    if (use == snapshot_use::restore_exactly) break;
    snapshot const before = content;
    migration change(content);
    one.change(change);
    if (!is_same(before, content)) log_.emit("migrated", 0, {{"migration", one.name}, {"checkpoint", source}});
  }
  nlohmann::json const registered =
      content.state.value(nlohmann::json::json_pointer("/run/registered"), nlohmann::json::object());
  if (!options_.accept_changed_recipe) require_same_states(registered_.names(), registered, source);
  if (use == snapshot_use::resume) require_same_fingerprints(options_, content.state, source);
  std::string const run_id = content.run;
  // A checkpoint of an older version has no interval, so do not keep the current one.
  progress_.record.interval = {};
  // A replay returns to the current state, in which some parts may still be waiting for their saved state.
  bool const is_replay = use == snapshot_use::replay || use == snapshot_use::restore_exactly;
  auto waiting = is_replay ? std::optional(*deferred_parts_) : std::nullopt;
  deferred_parts_->match(content, models_.trained(), source);
  if (waiting) *deferred_parts_ = std::move(*waiting);
  models_.match_groups(content.state);
  config const present = current_config();
  models_.end_passes();
  // Without slices, whole parameters are loaded, and sharded again.
  gathered_parameters const whole = content.model_slices.empty() ? models_.gather_parameters() : gathered_parameters({});
  apply_snapshot(std::move(content), present, models_.model(), models_.trained(), parts(), source, accepted(use));
  run_id_ = run_id;
  models_.adopt_loaded_rates();
}

KEEL_BODY void checkpoint_manager::restore_loaded_random() {
  random_.restore();
  if (is_checkpoint_of_this_rank_) return;
  decorrelate_generators(models_.parameters().device, ranks_.rank());
}

KEEL_BODY bool checkpoint_manager::visit_newest(std::function<void(snapshot, std::string const&)> const& take) {
  if (!ranks_.is_shared()) return load_newest_valid(directory_->checkpoints(), take, on_damaged());
  snapshot content;
  std::string source;
  auto const find = [&](checkpoint_store::reader const& read, snapshot& to, std::string& from) {
    return load_newest_valid(
        directory_->checkpoints(), [&](snapshot one, std::string const& path) { to = std::move(one), from = path; },
        on_damaged(), read);
  };
  if (!find_checkpoint(find, content, source)) return false;
  take(std::move(content), source);
  return true;
}

KEEL_BODY bool checkpoint_manager::find_checkpoint(checkpoint_collectives::search const& find, snapshot& content,
                                                   std::string& source) {
  return ranks_.find_checkpoint(
      find, directory_->files(), [this](nlohmann::json const& state) { return choose_slices(state); }, content, source);
}

KEEL_BODY slice_choice checkpoint_manager::choose_slices(nlohmann::json const& state) {
  // A migration needs whole tensors, as saved; and parameters that are frozen or unfrozen have other slices then.
  if (!migrations_.empty() || !models_.has_groups_of(state)) return [](auto const&...) { return std::nullopt; };
  slice_map model, states;
  if (models_.shards_parameters()) {
    live_model_tensors(models_.model(), models_.trained(), model);
    nlohmann::json values;
    tensor_map tensors;
    state_writer writer(values, tensors, "step.", &states);
    models_.visit(writer);
  }
  return [model = std::move(model), states = std::move(states), trained = models_.trained()](
             std::string const& kind, std::string const& name,
             std::vector<std::int64_t> const& sizes) -> std::optional<tensor_slice> {
    std::optional<tensor_slice> found;
    auto const find = [&](slice_map const& slices) {
      if (auto const slice = slices.find(name); slice != slices.end()) found = slice->second;
    };
    if (kind == "model") find(model);
    if (kind == "state") find(states);
    for (trained_optimizer const& one : trained) {
      std::string const prefix = one.prefix();
      if (kind == "optimizer" && one.shards != nullptr && name.starts_with(prefix))
        found = one.shards->slice_of(name.substr(prefix.size()), *one.parameters);
    }
    return found && found->sizes == sizes ? found : std::nullopt;
  };
}

KEEL_BODY accepted_changes checkpoint_manager::accepted(snapshot_use use) const {
  accepted_changes accepts{options_.accept_changed_recipe, options_.accept};
  std::erase_if(accepts.names, [&](std::string const& name) { return options_.fingerprints.count(name) > 0; });
  // A replay makes no optimizer step, so its learning rate does not matter.
  if (options_.resume_at || use == snapshot_use::roll_back || use == snapshot_use::replay) accepts.names.push_back("lr");
  if (use == snapshot_use::restore_exactly) accepts = {};
  accepts.is_same_run = use == snapshot_use::roll_back || use == snapshot_use::restore_exactly;
  return accepts;
}

KEEL_BODY bool checkpoint_manager::load_checkpoint_of(std::int64_t update) {
  auto& store = directory_->checkpoints();
  if (saver_) saver_->wait();
  rollback_history history;
  run_record newest;
  std::int64_t newest_update = -1;
  auto const look = [&](snapshot content, std::string const& source) {
    select_rank_state(content, ranks_.rank());
    nlohmann::json const fields = content.state.value("run", nlohmann::json::object());
    nlohmann::json const rollbacks = fields.value("rollbacks", nlohmann::json::object());
    nlohmann::json const record = fields.value("record", nlohmann::json::object());
    state_reader past(rollbacks, content.tensors, source, "rollbacks.");
    history.visit(past);
    state_reader counts(record, content.tensors, source, "record.");
    newest.visit(counts);
    newest_update = fields.value(nlohmann::json::json_pointer("/step/updates"), std::int64_t{0});
  };
  visit_newest(look);
  double const rate = models_.highest_rate();
  if (history.was_restarted(update, rate)) return load_newest();
  snapshot content;
  std::string source;
  auto const find = [&](checkpoint_store::reader const& read, snapshot& to, std::string& from) {
    auto const all = store.updates();
    if (std::find(all.begin(), all.end(), update) == all.end()) {
      std::string there;
      for (std::int64_t const one : all) there += (there.empty() ? " Existing checkpoints: " : ", ") + std::to_string(one);
      throw error("E12", "options.resume_at is " + std::to_string(update) + ", but " + store.path_of(update).string() +
                             " does not exist." + (there.empty() ? " There are no checkpoints" : there) +
                             ". Set it to the update of an existing checkpoint, or remove the option.");
    }
    checkpoint_id const id(update, !store.exists(update));
    to = store.load(id, read);
    from = store.path_of(id).string();
    return true;
  };
  find_checkpoint(find, content, source);
  apply(std::move(content), source);
  restore_loaded_random();
  history.restarted_at.push_back(update);
  history.restarted_with.push_back(rate);
  history.before_restart = history.count();
  rollbacks_ = std::move(history);
  std::int64_t const produced_by_attempt = progress_.record.produced_by_attempt;
  std::int64_t const kept = last_kept_attempt();
  progress_.record.attempts = std::max(newest.attempts, progress_.record.attempts);
  progress_.record.lines = directory_->metrics().lines();
  progress_.record.rungs = std::max(newest.rungs, progress_.record.rungs);
  ranks_.on_rank0([&] {
    checkpoint_id const id(update, !store.exists(update));
    for (checkpoint_id const& one : store.all())
      if (one > id) store.rename_abandoned(one);
    return nlohmann::json();
  });
  forget_lost_best();
  log_.restarted(newest_update, update, rate, kept);
  begin_save(save_reason::scheduled, produced_by_attempt);
  if (saver_) saver_->wait();
  return true;
}

KEEL_BODY bool checkpoint_manager::load_from(std::filesystem::path const& directory) {
  try {
    snapshot content;
    std::string source;
    auto const find = [&](checkpoint_store::reader const& read, snapshot& to, std::string& from) {
      detail::require_no_run_directory(directory);
      to = read(directory);
      from = directory.string();
      return true;
    };
    find_checkpoint(find, content, source);
    apply(std::move(content), source);
  } catch (nlohmann::json::exception const& thrown) {
    throw checkpoint_error("E05", directory.string() + ": it does not contain the state of a run (" + thrown.what() +
                                      "). Use another checkpoint.");
  }
  restore_loaded_random();
  run_id_.clear();  // another run begins
  forget_lost_best();
  progress_.record.lines = 0;
  directory_->metrics().set_aside();
  directory_->layers().set_aside();
  log_.begins_with(directory, models_.updates(), describe_replaced_source(options_), describe_live_state());
  // Save at once, so that this directory no longer depends on the other one.
  begin_save(save_reason::scheduled, progress_.record.produced_by_attempt);
  if (saver_) saver_->wait();
  return true;
}

KEEL_BODY bool checkpoint_manager::load_newest() {
  if (saver_) saver_->wait();
  auto const apply_one = [&](snapshot content, std::string const& source) {
    apply(std::move(content), source);
    log_.notice("resumed at update " + std::to_string(models_.updates()) + " from " + source +
                describe_replaced_source(options_));
  };
  if (!visit_newest(apply_one)) return false;
  restore_loaded_random();
  saved_at_ = progress_.record.attempts;
  forget_lost_best();
  directory_->metrics().resume_at(progress_.record.lines);
  log_.resumed(models_.updates(), describe_live_state());
  return true;
}

KEEL_BODY bool checkpoint_manager::is_same(snapshot const& a, snapshot const& b) {
  auto const equal = [](tensor_map const& x, tensor_map const& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), [](auto const& one, auto const& other) {
      return one.first == other.first && one.second.is_same(other.second);
    });
  };
  return a.state == b.state && equal(a.model, b.model) && equal(a.optimizer, b.optimizer) && equal(a.tensors, b.tensors);
}

KEEL_BODY bool checkpoint_manager::roll_back(rollback_request const& request, config const& by) {
  if (saver_) saver_->wait();
  std::int64_t const attempts = progress_.record.attempts;
  models_.settle();
  log_.write_rest();
  rollback_plan const plan = plan_rollback(by, request.spike);
  if (rollbacks_.attempts() >= plan.attempts)
    throw_rollback_limit(request, rollbacks_,
                         "the run rolled back " +
                             (rollbacks_.attempts() == 1 ? "once" : std::to_string(rollbacks_.attempts()) + " times") +
                             ", which is this recipe's limit");
  // If nothing was saved since the last rollback, the checkpoint that it used led to this fault again: use an older one.
  std::optional<std::int64_t> before;
  if (rollbacks_.attempts() > 0) {
    std::int64_t const newest = ranks_.on_rank0([&] { return nlohmann::json(newest_scheduled()); });
    if (newest == rollbacks_.to.back()) before = newest;
  }
  snapshot content;
  std::string source;
  auto const find = [&](checkpoint_store::reader const& read, snapshot& to, std::string& from) {
    auto& store = directory_->checkpoints();
    auto found = find_checkpoint_before(store, attempts - plan.max_fault_age, before, on_damaged(), read);
    if (!found) return false;
    to = std::move(found->second);
    to.state["found_at"] = found->first.update;
    from = store.path_of(found->first).string();
    return true;
  };
  if (!find_checkpoint(find, content, source)) throw_rollback_limit(request, rollbacks_, "the run has no earlier checkpoint");
  auto const found_at = content.state.at("found_at").get<std::int64_t>();
  content.state.erase("found_at");

  event::rolled_back const event{models_.updates(), found_at, rollbacks_.count() + 1, request.why, plan.change};
  rollback_history history = rollbacks_;
  history.from.push_back(event.from);
  history.to.push_back(event.to);
  data_cursor const here = progress_.cursor;
  run_record const record = progress_.record;
  double const lowered = models_.lowered();
  apply(std::move(content), source, snapshot_use::roll_back);
  restore_loaded_random();
  // Discard the rollback request of an update that was pending, because it belongs to the abandoned state.
  config ignored = recipe_;
  models_.take_rollback_request(ignored);
  is_best_pending_ = false;
  rollbacks_ = std::move(history);
  std::int64_t const kept = last_kept_attempt();
  // The record's counters continue; its statistics are those of the checkpoint.
  progress_.record.attempts = record.attempts;
  progress_.record.lines = record.lines;
  progress_.record.rungs = record.rungs;
  std::int64_t const produced_by_attempt = progress_.record.produced_by_attempt;
  bool const rewinds_data = plan.change != nonfinite::change::skip_data;
  if (!rewinds_data) {
    progress_.cursor = here;
    progress_.record.evaluated_epochs = record.evaluated_epochs;
    if (recipe_.checkpoint.kind == checkpoint::kind::every_epochs) progress_.record.saved_units = record.saved_units;
  }
  // The checkpoint may predate an earlier rollback, so its learning rate may not be lowered yet.
  bool const lowers = plan.change == nonfinite::change::lower_lr;
  double const factor = lowered * (lowers ? nonfinite::lowered_by : 1.0) / models_.lowered();
  if (factor != 1.0) models_.lower_learning_rates(factor);
  forget_lost_best();
  if (plan.change == nonfinite::change::reseed) reseed(models_.parameters().device, event.count);
  log_.rolled_back(event, to_string(plan.change), kept);
  begin_save(save_reason::scheduled, produced_by_attempt);
  if (saver_) saver_->wait();
  hooks_(event);
  return rewinds_data;
}

KEEL_BODY std::int64_t checkpoint_manager::newest_scheduled() {
  auto& store = directory_->checkpoints();
  for (checkpoint_id const& id : store.newest_first()) {
    if (!store.is_requested(id)) return id.update;
  }
  return -1;
}

KEEL_BODY void checkpoint_manager::forget_lost_best() {
  std::vector<std::int64_t> const there = ranks_.on_rank0([&] { return nlohmann::json(directory_->checkpoints().updates()); });
  for (std::int64_t const update : best_.retain_only(there)) log_.emit("best_lost", update);
}

KEEL_BODY void checkpoint_manager::reseed(at::DeviceType device, std::int64_t count) {
  auto const seed = recipe_.determinism.seed + 0x9e3779b97f4a7c15ull * static_cast<std::uint64_t>(count) +
                    static_cast<std::uint64_t>(ranks_.rank());
  libtorch::seed_random(at::kCPU, seed);
  if (device != at::kCPU) libtorch::seed_random(device, seed);
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
