// Definitions for run_observer.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/metrics/operation_count.hpp>
#include <keel/shard/optimizer_shards.hpp>
#include <keel/trainer/describe_run.hpp>
#include <keel/trainer/open_directory.hpp>
#include <keel/trainer/resume.hpp>
#include <keel/trainer/run_directory.hpp>
#include <keel/trainer/run_incidents.hpp>
#include <keel/trainer/run_observer.hpp>
#include <nlohmann/json.hpp>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY run_observer::run_observer(config const& recipe, trained_models& models, phase_clock& phases, run_log& log,
                                     trainer_options const& options, run_directory* directory, bool alarms_write_incidents)
    : recipe_(recipe),
      models_(models),
      phases_(phases),
      log_(log),
      options_(options),
      directory_(directory),
      batches_(recipe.batch_guard),
      failure_(std::make_unique<nlohmann::ordered_json>()),
      profiles_(recipe.profile, directory == nullptr ? std::filesystem::path() : root_of(*directory) / "profiles") {
  if (recipe_.incident.kind == keel::incident::kind::keep && options.run_directory.empty())
    throw error("E12",
                "the recipe keeps incidents but options.run_directory is empty. Name a directory, or use "
                "keel::incident::trace.");
  if (alarms_write_incidents && options.run_directory.empty())
    throw error("E12",
                "an alarm of the recipe writes incidents but options.run_directory is empty. Name a directory, or bind "
                "keel::health::log.");
}

KEEL_BODY run_observer::~run_observer() = default;

KEEL_BODY void run_observer::begin() {
  c10::Device const device = models_.device();
  if (!gpu_ || device != device_) gpu_.emplace(device);
  device_ = device;
  profiles_.use(device);
}

KEEL_BODY void run_observer::describe_begin(bool resumed) {
  if (models_.has_parts()) return;
  step_engine& step = models_.all().front()->step();
  optimizer_shards::scope const shards(step.ranks().shards());
  nlohmann::ordered_json state;
  // Before the early return, because it is collective.
  if (resumed) state = describe_state(step.model(), step.optimizer(), step.parameters(), models_.whole_tensor_access());
  auto description = describe_parameters(step.model(), step.optimizer(), step.parameters());
  if (description.is_null()) return log_.emit("begins", models_.updates());
  if (resumed) description["state"] = std::move(state);
  if (!options_.fingerprints.empty()) description["fingerprints"] = options_.fingerprints;
  log_.emit("begins", models_.updates(), description);
}

KEEL_BODY void run_observer::capture_shortage(std::exception const& thrown, bool evaluates) {
  *failure_ = nullptr;
  if (!is_out_of_memory(thrown) && dynamic_cast<out_of_memory_error const*>(&thrown) == nullptr) return;
  for (run_part const* const one : models_.all()) {
    auto const where = one->step().shortage();
    if (!where) continue;
    *failure_ = describe_shortage(*where);
    return;
  }
  *failure_ = describe_shortage(evaluates ? "evaluating" : "between updates", models_.device());
}

KEEL_BODY void run_observer::check_batch(c10::function_ref<batch_contents()> contents, data_cursor const& at) {
  if (recipe_.batch_guard.kind == batch_guard::kind::off) return;
  if (is_batch_guard_on_) {
    try {
      batches_.at(at.epoch, at.position);
      if (batches_.is_on()) {
        for (batch_finding const& found : batches_.look_at(contents())) report(found);
      }
      if (auto const guess = batches_.take_guess()) {
        log_.emit("labels", models_.updates(),
                  {{"are", guess->are_classes ? "classes" : "numbers"},
                   {"guess", guess->loss},
                   {"labels", guess->labels},
                   {"in_a_batch", guess->in_a_batch}});
      }
    } catch (data_error const&) {
      throw;
    } catch (std::exception const& thrown) {
      // LibTorch cannot read a tensor, or there is not enough memory: the run continues without the batch guard.
      is_batch_guard_on_ = false;
      log_.notice("warning: batches are no longer checked: " + first_line(thrown));
    }
  }
  log_.batch(models_.at_boundary(), batches_.padding(), batches_.ignored_labels(), batches_.checksum());
}

KEEL_BODY void run_observer::dropped(std::int64_t count, std::int64_t rows) {
  log_.record_batch_finding(models_.updates(), batches_.dropped(count, rows));
}

KEEL_BODY void run_observer::end_epoch() {
  for (batch_finding const& found : batches_.end_epoch()) report(found);
}

KEEL_BODY double run_observer::use_operations(double per_token) {
  operations_per_token_ = per_token;
  if (options_.peak_operations_per_second > 0.0) peak_ = options_.peak_operations_per_second;
  if (peak_ > 0.0) return per_token;
  auto const precision = recipe_.precision.kind;
  auto const dtype = precision == precision::kind::fp32   ? at::kFloat
                     : precision == precision::kind::bf16 ? at::kBFloat16
                                                          : at::kHalf;
  try {
    peak_ = measured_peak(models_.device(), dtype);
  } catch (std::exception const& thrown) {
    if (!is_out_of_memory(thrown)) throw;
    log_.notice(
        "warning: there is not enough memory to measure the device's peak rate; set options.peak_operations_per_second to "
        "report utilization");
  }
  return per_token;
}

KEEL_BODY layer_detail run_observer::layers_due(bool has_other_consumer, std::int64_t next) const {
  if (!has_other_consumer && options_.sinks.empty()) return layer_detail::none;
  auto const is_due = [&](std::int64_t every) { return every > 0 && next % every == 0; };
  if (is_due(options_.histograms_every)) return layer_detail::distributions;
  return is_due(options_.layers_every) ? layer_detail::norms : layer_detail::none;
}

KEEL_BODY void run_observer::incident(event::incident const& event, run_part const& part, checkpoint_manager& checkpoints,
                                      data_cursor const& began_at, std::int64_t attempts) {
  nlohmann::ordered_json description = describe_incident(event, attempts + 1);
  if (part.has_name()) description["part"] = part.name();
  description["epoch"] = began_at.epoch;
  description["position"] = began_at.position;
  written_incident written;
  // An iteration of several models is one attempt; only its first incident is kept.
  bool const is_kept = part.has_name() && kept_attempt_ == attempts;
  if (recipe_.incident.kind == keel::incident::kind::keep && !is_kept) {
    auto const& began_with = event.inputs.micro_batches;
    try {
      random_snapshot const now = random_snapshot::take(part.step().parameters().device);
      snapshot content = checkpoints.before_update(began_with.empty() ? now : began_with.front().random, began_at);
      // Omit sharded moments: a replay makes no update and does not need them.
      for (trained_optimizer const& one : models_.trained()) {
        if (one.shards == nullptr) continue;
        auto const is_of_part = [&](auto const& entry) { return entry.first.starts_with(one.prefix()); };
        std::erase_if(content.optimizer, is_of_part);
        std::erase_if(content.optimizer_slices, is_of_part);
        content.state[nlohmann::json::json_pointer(places_of(one.name).optimizer + "/state")] = nlohmann::json::object();
      }
      add_incident(content, event, description);
      written =
          write_incident(directory_->files(), directory_->root(), attempts + 1, recipe_.incident.most, content, description);
      kept_attempt_ = attempts;
      if (!written.removal_failure.empty())
        log_.notice("warning: an older incident was not removed: " + written.removal_failure);
    } catch (std::exception const& thrown) {
      // Only the files are missing: the run handles the update as it would without them.
      log_.notice("warning: an incident was not written: " + first_line(thrown));
    }
  }
  log_.incident(event.update, description, written.path.string(), written.bytes);
}

KEEL_BODY void run_observer::before_update(std::int64_t attempt) {
  // An iteration of several models that updates none is not an attempt.
  if (recipe_.profile.kind == profile::kind::off || std::exchange(profiled_attempt_, attempt) == attempt) return;
  profiles_.before_update(models_.updates(), attempt, phases_);
  report_written_profiles();
}

KEEL_BODY void run_observer::end() {
  if (recipe_.profile.kind == profile::kind::off) return;
  try {
    profiles_.end(phases_);
    report_written_profiles();
  } catch (std::exception const& thrown) {
    // A profile that cannot be written must not fail the end of the run.
    log_.notice("warning: a profile could not be written: " + first_line(thrown));
  }
}

KEEL_BODY void run_observer::report(batch_finding const& found) {
  if (batches_.is_news(found.what)) log_.record_batch_finding(models_.updates(), found);
}

KEEL_BODY void run_observer::report_written_profiles() {
  while (auto const one = profiles_.take_written())
    log_.emit("profile", one->first_update, {{"path", one->path.string()}, {"message", one->why}});
  if (auto const words = profiles_.take_failure_message(); !words.empty()) log_.notice("warning: " + words);
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
