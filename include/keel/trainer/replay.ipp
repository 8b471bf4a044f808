// Definitions for replay.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <keel/attention/attention_scope.hpp>
#include <keel/checkpoint/read_checkpoint.hpp>
#include <keel/checkpoint/snapshot.hpp>
#include <keel/core/error.hpp>
#include <keel/core/mode_scope.hpp>
#include <keel/gradients/saved_gradients.hpp>
#include <keel/json/text.hpp>
#include <keel/recompute/unit_scope.hpp>
#include <keel/trainer/replay.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY std::vector<std::string> narrow_down_result::finite_experiments() const {
  std::vector<std::string> found;
  for (narrow_down_row const& row : rows) {
    if (row.is_finite) found.push_back(row.experiment);
  }
  return found;
}

KEEL_BODY std::string narrow_down_result::table() const {
  std::size_t width = 0;
  for (narrow_down_row const& row : rows) width = std::max(width, row.experiment.size());
  std::string text;
  for (narrow_down_row const& row : rows) {
    text += row.experiment + std::string(width - row.experiment.size() + 2, ' ');
    text += row.is_finite ? "FINITE      " : "not finite  ";
    text += row.message + "\n";
  }
  return text;
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

inline at::Device batch_device(nlohmann::json const& batch) { return at::Device(batch.at("device").get<std::string>()); }

KEEL_BODY incident_facts parse_incident(nlohmann::json const& state, std::string const& source, std::string const& part) {
  auto const found = state.find("incident");
  if (found == state.end() || !found->is_object()) {
    throw checkpoint_error("E05",
                           source +
                               " is a checkpoint, not an incident. Pass a folder in `incidents` of a run directory, which "
                               "keel::incident::keep<3> writes.");
  }
  nlohmann::json const& incident = *found;
  auto const named = incident.find("part");
  std::string const owner = named != incident.end() && named->is_string() ? named->get<std::string>() : std::string();
  if (owner != part) {
    auto const describe = [](std::string const& name) {
      return name.empty() ? std::string("a trainer") : "part " + printable(name, 100);
    };
    throw checkpoint_error("E03", source + " is an incident of " + describe(owner) + ", but replay() was called on " +
                                      describe(part) + ". Call replay() on " + describe(owner) + ".");
  }
  try {
    if (!incident.at("batches_are_written").get<bool>()) {
      throw checkpoint_error("E05", source +
                                        " has no batches, because their type does not list its fields. List them with `void "
                                        "visit(auto& archive)`, and replay a later incident.");
    }
    auto const require = [](bool holds, char const* what) {
      if (!holds) throw std::invalid_argument(std::string("invalid ") + what);
    };
    // nlohmann converts other numbers to integers without checking their range.
    auto const integer = [&](nlohmann::json const& value, char const* name, std::int64_t least, std::int64_t most) {
      require(value.is_number_integer() && value >= least && value <= most, name);
      return value.get<std::int64_t>();
    };
    constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();
    incident_facts facts{};
    facts.micro_batches = incident.at("batches").size();
    facts.loss_scale = incident.at("loss_scale").get<double>();
    require(facts.loss_scale > 0.0 && std::isfinite(facts.loss_scale), "loss_scale");
    facts.pieces = integer(incident.at("pieces"), "pieces", 1, 1 << 30);
    facts.length = integer(incident.at("length"), "length", 0, any);
    // With more threads libgomp terminates the process, or takes minutes.
    facts.threads = static_cast<int>(integer(incident.at("threads"), "threads", 0, 1024));
    for (nlohmann::json const& loss : incident.at("losses")) facts.losses.push_back(loss.dump());
    facts.gradients = incident.at("gradients").get<std::string>();
    for (nlohmann::json const& batch : incident.at("batches")) static_cast<void>(batch_device(batch));
    auto const origin = incident.find("origin");
    require(origin == incident.end() || origin->is_object(), "origin");
    if (origin != incident.end() && origin->contains("rows")) {
      for (nlohmann::json const& row : origin->at("rows")) integer(row, "row in origin", 0, any);
    }
    return facts;
  } catch (checkpoint_error const&) {
    throw;
  } catch (std::exception const& thrown) {
    throw checkpoint_error("E05", source + ": the incident is damaged or was not written by keel (" +
                                      printable(first_line(thrown), 200) + "). Use another one.");
  }
}

inline bool matches_incident(incident_facts const& facts, traced_update const& traced) {
  if (facts.losses.size() != traced.losses.size() || facts.gradients != traced.gradients) return false;
  for (std::size_t i = 0; i < traced.losses.size(); ++i) {
    if (number_to_json(traced.losses[i]).dump() != facts.losses[i]) return false;
  }
  return true;
}

/// RAII: sets LibTorch's thread count and anomaly mode and the mode of the models, and restores them on destruction.
class replay_scope {
 public:
  replay_scope(torch::nn::Module& models, int threads, replay_options const& options)
      : modes_(models),
        threads_(at::get_num_threads()),
        was_anomaly_(torch::autograd::AnomalyMode::is_enabled()),
        checked_nan_(torch::autograd::AnomalyMode::should_check_nan()) {
    if (options.evaluation_mode) models.eval();
    if (threads > 0 && threads != threads_) at::set_num_threads(threads);
    if (options.anomaly_mode) torch::autograd::AnomalyMode::set_enabled(true, true);
  }
  replay_scope(replay_scope const&) = delete;
  replay_scope& operator=(replay_scope const&) = delete;
  ~replay_scope() {
    torch::autograd::AnomalyMode::set_enabled(was_anomaly_, checked_nan_);
    if (at::get_num_threads() != threads_) at::set_num_threads(threads_);
  }

 private:
  mode_scope modes_;
  int threads_;
  bool was_anomaly_;
  bool checked_nan_;
};

KEEL_BODY incident_replay::incident_replay(dry_run_subject const& of, std::filesystem::path const& incident, read_batch read)
    : step_(of.step), models_(of.loop.models().model()), read_(std::move(read)), source_(incident.string()) {
  of.loop.require_no_open_update("a replay");
  content_ = std::make_unique<snapshot>(read_checkpoint(incident));
  facts_ = parse_incident(content_->state, source_, of.part);
  checkpoint_manager& checkpoints = of.loop.checkpoints();
  std::vector<random_snapshot> const all_random = random_state_of(of.loop.models());
  auto buffers = std::make_shared<snapshot_buffers>();
  snapshot const present =
      buffers->copy(checkpoints.before_update(random_snapshot::take(step_.parameters().device), of.loop.cursor()));
  restore_ = [&checkpoints, buffers, present, all_random] {
    checkpoints.apply_for_replay(present, "this run", /*exactly=*/true);
    for (random_snapshot const& one : all_random) one.restore();
  };
  try {
    checkpoints.apply_for_replay(*content_, source_, /*exactly=*/false);
  } catch (...) {
    // Restore the run, then rethrow.
    restore_();
    throw;
  }
}

KEEL_BODY incident_replay::~incident_replay() {
  try {
    if (restore_) restore_();
  } catch (std::exception const&) {
    // Only reached while another exception is in flight, which is more informative than this one.
  }
}

KEEL_BODY void incident_replay::end() { std::exchange(restore_, {})(); }

KEEL_BODY update_inputs incident_replay::read_batches(replay_options const& options) {
  update_inputs kept;
  for (std::size_t i = 0; i < facts_.micro_batches; ++i) {
    if (options.micro_batch >= 0 && static_cast<std::size_t>(options.micro_batch) != i) continue;
    nlohmann::json const& values = content_->state.at("incident").at("batches").at(i);
    state_reader reader(values, content_->tensors, source_, "incident." + std::to_string(i) + ".");
    random_snapshot random;
    reader("random", random);
    kept.owned.push_back(read_(reader, batch_device(values), options.synthetic));
    kept.micro_batches.push_back({kept.owned.back().get(), random});
  }
  return kept;
}

KEEL_BODY replay_result incident_replay::run(replay_options const& options) {
  update_inputs const kept = read_batches(options);
  auto const forward = [&](any_micro_batch& batch, std::int64_t begin, std::int64_t end, unit_listener* units) {
    using keel::precision::kind;
    auto const part = batch.slice(begin, end, facts_.length);
    autocast_scope const autocast(
        step_.parameters().device,
        step_.environment().autocast(options.fp32 ? kind::fp32 : step_.recipe_value().precision.kind));
    unit_scope const scope(options.without_recompute ? recompute_kind::none : step_.relief().recompute, units);
    attention_scope const attention(options.math_attention ? attention_kind::math : step_.relief().attention);
    return (part ? *part : batch).loss_of();
  };
  replay_settings settings;
  settings.scale = options.loss_scale > 0.0 ? options.loss_scale : facts_.loss_scale;
  settings.pieces = options.pieces > 0 ? options.pieces : facts_.pieces;
  settings.length = facts_.length;
  settings.without_rows = options.without_rows;
  saved_gradients const gradients(models_.parameters());
  replay_scope const scope(models_, options.threads > 0 ? options.threads : facts_.threads, options);
  traced_update traced = step_.replay(kept, forward, settings);
  bool const same = matches_incident(facts_, traced);
  return {std::move(traced.origin), std::move(traced.losses), same};
}

KEEL_BODY std::vector<std::pair<std::string, replay_options>> incident_replay::list_experiments() const {
  incident_facts const& facts = facts_;
  config const& recipe = step_.recipe_value();
  std::vector<std::pair<std::string, replay_options>> all;
  all.push_back({"unchanged", {}});
  if (recipe.precision.kind != precision::kind::fp32) all.push_back({"fp32", {.fp32 = true}});
  if (facts.loss_scale != 1.0) all.push_back({"loss scale 1", {.loss_scale = 1.0}});
  nlohmann::json const origin = content_->state.at("incident").value("origin", nlohmann::json::object());
  if (origin.contains("rows")) {
    auto rows = origin["rows"].get<std::vector<std::int64_t>>();
    std::string words = rows.size() == 1 ? "without row " : "without rows ";
    for (std::size_t i = 0; i < rows.size(); ++i) words += (i == 0 ? "" : ", ") + std::to_string(rows[i]);
    if (facts.micro_batches > 1) words += " of each micro-batch";
    all.push_back({words, {.without_rows = std::move(rows)}});
  }
  if (facts.micro_batches > 1) {
    for (std::size_t i = 0; i < facts.micro_batches; ++i)
      all.push_back({"micro-batch " + std::to_string(i) + " alone", {.micro_batch = static_cast<std::int64_t>(i)}});
  }
  all.push_back({"micro-batches in two pieces", {.pieces = 2 * facts.pieces}});
  all.push_back({"one thread", {.threads = 1}});
  if (recipe.recompute.kind != recompute_kind::none) all.push_back({"without recompute", {.without_recompute = true}});
  if (recipe.attention.kind != attention_kind::math) all.push_back({"math attention", {.math_attention = true}});
  all.push_back({"evaluation mode (no dropout)", {.evaluation_mode = true}});
  all.push_back({"synthetic inputs", {.synthetic = true}});
  all.push_back({"LibTorch's anomaly mode", {.anomaly_mode = true}});
  return all;
}

KEEL_BODY narrow_down_result incident_replay::run_experiments() {
  narrow_down_result result;
  for (auto const& [experiment, options] : list_experiments()) {
    replay_result const found = run(options);
    result.rows.push_back({experiment, found.is_finite(), found.is_finite() ? "" : to_sentence(found.origin)});
  }
  return result;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
