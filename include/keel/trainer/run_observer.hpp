// What a trainer looks at beside the update itself: each batch before it trains, what a token costs, and the profiles of updates.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <keel/batch_guard/batch_watch.hpp>
#include <keel/checkpoint/batch_fields.hpp>
#include <keel/core/batch.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/metrics/gpu_state.hpp>
#include <keel/metrics/layer_record.hpp>
#include <keel/metrics/operation_count.hpp>
#include <keel/policy/health.hpp>
#include <keel/recipe/config_of.hpp>
#include <keel/rule/not_implemented.hpp>
#include <keel/rule/reject_call.hpp>
#include <keel/shard/optimizer_shares.hpp>
#include <keel/trainer/options.hpp>
#include <keel/trainer/progress.hpp>
#include <keel/trainer/replay.hpp>
#include <keel/trainer/run_beginning.hpp>
#include <keel/trainer/run_directory.hpp>
#include <keel/trainer/run_incidents.hpp>
#include <keel/trainer/run_log.hpp>
#include <keel/trainer/run_profiles.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// A trainer's part.
template <class Recipe>
class run_observer {
  static constexpr config configured = kinds_of(config_of<Recipe>);
  static constexpr bool records_profiles = configured.profile.kind != profile::kind::off;

 public:
  /// All of them outlive this. `profiles`: where they go. Throws error (E12) for a recipe with profiles or incidents and no place
  /// for them.
  run_observer(step_engine& step, run_log& log, trainer_options const& options, std::filesystem::path profiles)
      : step_(step),
        log_(log),
        options_(options),
        gpu_(step.parameters().tensors.front().device()),
        profiles_(step.recipe_value().profile, std::move(profiles), step.parameters().tensors.front().device()) {
    if (configured.incident.kind == keel::incident::kind::keep && options.run_directory.empty())
      throw error("E12",
                  "the recipe keeps incidents but options.run_directory is empty. Name a directory, or use "
                  "keel::incident::trace.");
    if (health::binds_action<policy_of<Recipe, slot::health>>(health::action::incident) && options.run_directory.empty())
      throw error("E12",
                  "an alarm of the recipe writes incidents but options.run_directory is empty. Name a directory, or bind "
                  "keel::health::log.");
  }

  /// Rejects what no run can do for its alarms (U42, U45).
  static constexpr void require_alarms() {
    using alarms = policy_of<Recipe, slot::health>;
    if constexpr (!health::has_alarms_only<alarms>()) {
      reject_call<rule::U42, Recipe>();
    } else if constexpr (configured.checkpoint.kind == checkpoint::kind::never &&
                         health::binds_action<alarms>(health::action::checkpoint)) {
      reject_call<rule::U45, Recipe>();
    }
  }

  /// The first update of a run, or after a resume, is next.
  void begins(bool resumed) {
    optimizer_shares::inside const shares(step_.ranks().shares());
    auto description = describe_parameters(step_.model(), step_.optimizer(), step_.parameters());
    if (resumed && description.is_object())
      description["state"] = describe_state(step_.model(), step_.optimizer(), step_.parameters());
    if (description.is_object() && !options_.fingerprints.empty()) description["fingerprints"] = options_.fingerprints;
    log_.begins(step_.updates(), description);
  }

  /// The run ends with this exception, and the update that is open goes: where memory ran out is still to be seen.
  void failing(std::exception const& thrown, bool evaluates) {
    failure_ = nullptr;
    if (!is_out_of_memory(thrown) && dynamic_cast<out_of_memory_error const*>(&thrown) == nullptr) return;
    if (auto const where = step_.shortage()) {
      failure_ = describe_shortage(*where);
    } else {
      failure_ = describe_shortage(evaluates ? "evaluating" : "between updates", step_.parameters().tensors.front().device());
    }
  }
  /// Null where it was not memory.
  nlohmann::ordered_json const& failure() const { return failure_; }

  // Batches.

  /// Says what is odd about a batch. Returns its finite rows, where the recipe drops others and there are some. Throws data_error (E06)
  /// where it cannot train, error (E12) for a batch without rows that could be dropped, and drops the update then.
  template <class Batch>
  std::optional<Batch> look_at([[maybe_unused]] Batch const& batch, [[maybe_unused]] std::int64_t epoch,
                               [[maybe_unused]] std::int64_t position) {
    if constexpr (configured.batch_guard.kind != batch_guard::kind::off) {
      if (looks_) {
        try {
          batches_.at(epoch, position);
          for (batch_finding const& found : batches_.look(batch)) say(found);
          if (auto const guess = batches_.take_guess()) log_.labels(step_.updates(), *guess);
        } catch (data_error const&) {
          step_.drop_update();
          throw;
        } catch (std::exception const& thrown) {
          // A tensor that LibTorch cannot look at, or no memory for it: the run goes on without a guard.
          looks_ = false;
          log_.notice("warning: batches are not looked at any more: " + first_line(thrown));
        }
      }
      log_.batch(!step_.has_open_update(), batches_.padding(), batches_.ignored_labels(), batches_.checksum());
    }
    if constexpr (configured.batch_guard.kind == batch_guard::kind::drop) {
      auto drops_update = c10::make_scope_exit([this] { step_.drop_update(); });
      std::optional<Batch> finite = finite_part(batch);
      drops_update.release();
      return finite;
    }
    return std::nullopt;
  }
  void end_epoch() {
    for (batch_finding const& found : batches_.end_epoch()) say(found);
  }
  /// A resume or a rollback moved the data.
  void data_moved() { batches_.data_moved(); }

  // Utilisation.

  /// Measures what the device can do where nothing says it. Returns its argument.
  double use_operations(double per_token) {
    operations_per_token_ = per_token;
    if (options_.peak_operations_per_second > 0.0) peak_ = options_.peak_operations_per_second;
    if (peak_ > 0.0) return per_token;
    using precision::kind;
    constexpr auto dtype = configured.precision.kind == kind::fp32   ? at::kFloat
                           : configured.precision.kind == kind::bf16 ? at::kBFloat16
                                                                     : at::kHalf;
    try {
      peak_ = measured_peak(step_.parameters().tensors.front().device(), dtype);
    } catch (std::exception const& thrown) {
      if (!is_out_of_memory(thrown)) throw;
      log_.notice(
          "warning: memory does not suffice to measure the device's peak; set options.peak_operations_per_second for "
          "utilisation");
    }
    return per_token;
  }
  /// 0: not known.
  double operations_per_token() const { return operations_per_token_; }
  /// Operations a second; 0: not known.
  double peak() const { return peak_; }

  // Layers.

  /// What the update that begins now looks at. Nothing where the figures would have no place: `has_place`, apart from sinks.
  layer_detail layers_due(bool has_place) const {
    if (!has_place && options_.sinks.empty()) return layer_detail::none;
    std::int64_t const next = step_.updates() + (step_.is_pending() ? 2 : 1);
    auto const is_due = [&](std::int64_t every) { return every > 0 && next % every == 0; };
    if (is_due(options_.histograms_every)) return layer_detail::distributions;
    return is_due(options_.layers_every) ? layer_detail::norms : layer_detail::none;
  }

  // Incidents.

  /// An update that is not finite was looked into: says so, and keeps what shows it again where the recipe asks for that.
  template <class Checkpoints>
  void incident(event::incident const& event, run_directory* directory, Checkpoints& checkpoints, data_cursor const& began_at,
                std::int64_t attempts) {
    nlohmann::ordered_json description = describe_incident(event, attempts + 1);
    description["epoch"] = began_at.epoch;
    description["position"] = began_at.position;
    written_incident written;
    if constexpr (configured.incident.kind == keel::incident::kind::keep) {
      auto const& began_with = event.began_with.micro_batches;
      try {
        random_snapshot const now = random_snapshot::take(step_.parameters().device);
        snapshot content = checkpoints.before_update(began_with.empty() ? now : began_with.front().random, began_at);
        // A share of the moments is of no use to a replay, which makes no update.
        if (step_.ranks().shares() != nullptr) {
          content.optimizer.clear();
          content.state["optimizer"]["state"] = nlohmann::json::object();
        }
        add_incident(content, event, description);
        written = write_incident(directory->files(), directory->root(), attempts + 1, step_.recipe_value().incident.most,
                                 content, description);
        if (!written.not_removed.empty()) log_.notice("warning: an older incident was not removed: " + written.not_removed);
      } catch (std::exception const& thrown) {
        // What the run does with the update does not depend on it.
        log_.notice("warning: an incident was not kept: " + first_line(thrown));
      }
    }
    log_.incident(event.update, description, written.path.string(), written.bytes);
  }

  // The device.

  std::optional<gpu_state> gpu() { return gpu_.read(); }

  // Profiles.

  void before_update(std::int64_t attempt) {
    if constexpr (records_profiles) {
      profiles_.before_update(step_.updates(), attempt, step_.phases());
      say_what_is_written();
    }
  }
  /// Something that a profile would explain.
  void symptom(std::string const& why) {
    if constexpr (records_profiles) profiles_.symptom(why);
  }
  void end() {
    if constexpr (records_profiles) {
      try {
        profiles_.end(step_.phases());
        say_what_is_written();
      } catch (std::exception const& thrown) {
        // The run's end is what counts.
        log_.notice("warning: a profile was lost: " + first_line(thrown));
      }
    }
  }

 private:
  /// Leaves those rows in what has so many.
  struct keep_rows {
    at::Tensor numbers;  ///< int64, on the host
    std::int64_t rows;
    at::Tensor operator()(at::Tensor const& one) const {
      return one.dim() > 0 && one.size(0) == rows ? one.index_select(0, numbers.to(one.device())) : one;
    }
    template <class Number>
    std::vector<Number> list(std::vector<Number> const& all) const {
      if (static_cast<std::int64_t>(all.size()) != rows) return all;
      std::vector<Number> kept;
      for (std::int64_t i = 0; i < numbers.numel(); ++i)
        kept.push_back(all[static_cast<std::size_t>(numbers.data_ptr<std::int64_t>()[i])]);
      return kept;
    }
  };
  template <class Batch>
  std::optional<Batch> finite_part(Batch const& batch) {
    if constexpr (!countable_batch<Batch>) {
      return std::nullopt;  // the step rejects it (U14)
    } else if constexpr (!writable_batch<Batch> || !std::copy_constructible<Batch> || requires { batch.granularity(); }) {
      reject_call<rule::U60, Batch>();
    } else {
      std::int64_t const rows = batch_traits<Batch>::rows(batch);
      batch_contents contents = contents_of(batch);
      Batch finite = batch;
      if (contents.inputs.empty())
        change_batch(finite, [&](at::Tensor const& one) { return contents.inputs.push_back(one), one; });
      auto const has_rows = [&](at::Tensor const& one) { return one.dim() > 0 && one.size(0) == rows; };
      if (std::none_of(contents.inputs.begin(), contents.inputs.end(), has_rows))
        throw error(
            "E12", "keel::batch_guard::drop finds no tensor with the batch's " + std::to_string(rows) +
                       " rows. Use keel::batch_guard::check, or a batch whose tensors have its rows as their first dimension.");
      at::Tensor const numbers = finite_rows(contents, rows);
      if (!numbers.defined()) return std::nullopt;
      log_.found(step_.updates(), batches_.dropped(rows - numbers.numel(), rows));
      change_batch(finite, keep_rows{numbers, rows});
      return finite;
    }
    return std::nullopt;
  }

  void say(batch_finding const& found) {
    if (batches_.is_news(found.what)) log_.found(step_.updates(), found);
  }
  void say_what_is_written() {
    while (auto const one = profiles_.take_written()) log_.profiled(one->first_update, one->path, one->why);
    if (auto const words = profiles_.take_trouble(); !words.empty()) log_.notice("warning: " + words);
  }

  step_engine& step_;
  run_log& log_;
  trainer_options const& options_;
  batch_watch batches_{step_.recipe_value().batch_guard};
  bool looks_ = true;
  double operations_per_token_ = 0.0;
  double peak_ = 0.0;
  nlohmann::ordered_json failure_;
  gpu_monitor gpu_;
  run_profiles profiles_;
};

}  // namespace keel::detail::inline KEEL_MODE
