// Definitions for replay.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <keel/checkpoint/read_checkpoint.hpp>
#include <keel/json/text.hpp>
#include <keel/trainer/replay.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY std::vector<std::string> narrow_result::cures() const {
  std::vector<std::string> found;
  for (narrow_row const& row : rows) {
    if (row.is_finite) found.push_back(row.experiment);
  }
  return found;
}

KEEL_BODY std::string narrow_result::table() const {
  std::size_t width = 0;
  for (narrow_row const& row : rows) width = std::max(width, row.experiment.size());
  std::string text;
  for (narrow_row const& row : rows) {
    text += row.experiment + std::string(width - row.experiment.size() + 2, ' ');
    text += row.is_finite ? "FINITE      " : "not finite  ";
    text += row.words + "\n";
  }
  return text;
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY snapshot read_incident(std::filesystem::path const& incident) { return read_checkpoint(incident); }

KEEL_BODY incident_facts parse_incident(nlohmann::json const& state, std::string const& source) {
  auto const found = state.find("incident");
  if (found == state.end() || !found->is_object()) {
    throw checkpoint_error("E05", source +
                                      " is a checkpoint and not an incident. Name a folder in `incidents` of a run directory, "
                                      "which keel::incident::keep<3> writes.");
  }
  nlohmann::json const& incident = *found;
  try {
    if (!incident.at("batches_are_written").get<bool>()) {
      throw checkpoint_error("E05", source +
                                        " has no batches, because their type does not say how it is written. List its fields "
                                        "with `void visit(auto& archive)`, and wait for the next incident.");
    }
    auto const require = [](bool holds, char const* what) {
      if (!holds) throw std::invalid_argument(std::string(what) + " cannot be right");
    };
    // nlohmann converts other numbers to integers without checking their range.
    auto const integer = [&](nlohmann::json const& value, char const* name, std::int64_t least, std::int64_t most) {
      require(value.is_number_integer() && value >= least && value <= most, name);
      return value.get<std::int64_t>();
    };
    constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();
    incident_facts facts{};
    facts.description = &incident;
    facts.micro_batches = incident.at("batches").size();
    facts.loss_scale = incident.at("loss_scale").get<double>();
    require(facts.loss_scale > 0.0 && std::isfinite(facts.loss_scale), "loss_scale");
    facts.pieces = integer(incident.at("pieces"), "pieces", 1, 1 << 30);
    facts.length = integer(incident.at("length"), "length", 0, any);
    // With more threads libgomp ends the process, or takes minutes.
    facts.threads = static_cast<int>(integer(incident.at("threads"), "threads", 0, 1024));
    for (nlohmann::json const& loss : incident.at("losses")) facts.losses.push_back(loss.dump());
    facts.gradients = incident.at("gradients").get<std::string>();
    for (nlohmann::json const& batch : incident.at("batches")) static_cast<void>(batch_device(batch));
    auto const origin = incident.find("origin");
    require(origin == incident.end() || origin->is_object(), "origin");
    if (origin != incident.end() && origin->contains("rows")) {
      for (nlohmann::json const& row : origin->at("rows")) integer(row, "a row of origin", 0, any);
    }
    return facts;
  } catch (checkpoint_error const&) {
    throw;
  } catch (std::exception const& thrown) {
    throw checkpoint_error("E05", source + ": its incident is not what keel writes (" + printable(first_line(thrown), 200) +
                                      "). Take another one.");
  }
}

KEEL_BODY nlohmann::json const& incident_batch(incident_facts const& facts, std::size_t index) {
  return facts.description->at("batches").at(index);
}

KEEL_BODY at::Device batch_device(nlohmann::json const& batch) { return at::Device(batch.at("device").get<std::string>()); }

KEEL_BODY bool matches_incident(incident_facts const& facts, traced_update const& traced) {
  if (facts.losses.size() != traced.losses.size() || facts.gradients != traced.gradients) return false;
  for (std::size_t i = 0; i < traced.losses.size(); ++i) {
    if (number_to_json(traced.losses[i]).dump() != facts.losses[i]) return false;
  }
  return true;
}

KEEL_BODY replay_scope::replay_scope(torch::nn::Module& model, int threads, bool anomaly_mode, bool evaluation_mode)
    : modes_(model),
      threads_(at::get_num_threads()),
      was_anomaly_(torch::autograd::AnomalyMode::is_enabled()),
      checked_nan_(torch::autograd::AnomalyMode::should_check_nan()) {
  if (evaluation_mode) model.eval();
  if (threads > 0 && threads != threads_) at::set_num_threads(threads);
  if (anomaly_mode) torch::autograd::AnomalyMode::set_enabled(true, true);
}

KEEL_BODY replay_scope::~replay_scope() {
  torch::autograd::AnomalyMode::set_enabled(was_anomaly_, checked_nan_);
  if (at::get_num_threads() != threads_) at::set_num_threads(threads_);
}

KEEL_BODY std::vector<std::pair<std::string, replay_options>> list_experiments(incident_facts const& facts,
                                                                               config const& recipe) {
  std::vector<std::pair<std::string, replay_options>> all;
  all.push_back({"the same again", {}});
  if (recipe.precision.kind != precision::kind::fp32) all.push_back({"fp32", {.fp32 = true}});
  if (facts.loss_scale != 1.0) all.push_back({"loss scale 1", {.loss_scale = 1.0}});
  auto const found = facts.description->find("origin");
  nlohmann::json const origin = found == facts.description->end() ? nlohmann::json::object() : *found;
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
  all.push_back({"evaluation mode, without dropout", {.evaluation_mode = true}});
  all.push_back({"synthetic inputs", {.synthetic = true}});
  all.push_back({"LibTorch's anomaly mode", {.anomaly_mode = true}});
  return all;
}

KEEL_BODY narrow_row row_of(std::string const& experiment, replay_result const& result) {
  return {experiment, result.is_finite(), result.is_finite() ? "" : to_sentence(result.origin)};
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
