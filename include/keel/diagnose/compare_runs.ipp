// Definitions for compare_runs.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <keel/checkpoint/load_weights.hpp>
#include <keel/checkpoint/store.hpp>
#include <keel/core/file_system.hpp>
#include <keel/diagnose/compare_runs.hpp>
#include <keel/diagnose/run_history.hpp>
#include <keel/json/text.hpp>
#include <keel/libtorch/host_value.hpp>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Maps the path of each leaf of a JSON tree, such as "clip.limit", to its value.
KEEL_BODY void flatten(nlohmann::json const& from, std::string const& path, std::map<std::string, std::string>& to) {
  if (from.is_object()) {
    for (auto const& [key, value] : from.items()) flatten(value, path.empty() ? key : path + "." + key, to);
  } else {
    to[path] = from.is_string() ? from.get<std::string>() : from.dump();
  }
}

KEEL_BODY void add_differences(std::map<std::string, std::string> const& a, std::map<std::string, std::string> const& b,
                               std::vector<setting_difference>& to) {
  auto all = a;
  all.insert(b.begin(), b.end());
  for (auto const& [name, unused] : all) {
    auto const of_a = a.find(name);
    auto const of_b = b.find(name);
    std::string const in_a = of_a == a.end() ? "" : of_a->second;
    std::string const in_b = of_b == b.end() ? "" : of_b->second;
    if (in_a != in_b) to.push_back({name, in_a, in_b});
  }
}

/// Returns settings from the state of the newest checkpoint: versions, the optimizer's options, the order of the data.
KEEL_BODY std::map<std::string, std::string> settings_of_state(file_system& files, std::filesystem::path const& directory) {
  std::map<std::string, std::string> found;
  if (!files.exists(directory / "checkpoints")) return found;
  checkpoint_store store(directory / "checkpoints");
  auto const updates = store.updates();
  if (updates.empty()) return found;
  try {
    nlohmann::json const state = parse_json(files.read(store.path_of_update(updates.back()) / "state.json"));
    for (char const* const key : {"keel", "libtorch"}) {
      if (state.contains(key) && state[key].is_string()) found[key] = state[key].get<std::string>();
    }
    auto const optimizer = state.value("optimizer", nlohmann::json::object());
    if (optimizer.contains("kind")) flatten(optimizer["kind"], "optimizer", found);
    std::size_t group = 0;
    for (auto const& one : optimizer.value("groups", nlohmann::json::array())) {
      std::string const name = "group " + std::to_string(group++);
      if (one.contains("options")) flatten(one["options"], name, found);
      if (one.contains("parameters")) found[name + ".parameters"] = std::to_string(one["parameters"].size());
      // The scheduled rate at the time of the checkpoint is not a setting; the records compare the rates of every update.
      found.erase(name + ".lr");
    }
    auto const order = state.value(nlohmann::json::json_pointer("/run/data/order"), nlohmann::json());
    if (order.is_string() && !order.get<std::string>().empty()) found["order of the data"] = order.get<std::string>();
  } catch (json_text_error const&) {
    // A damaged checkpoint adds no settings; the records are still compared.
  } catch (file_error const&) {
    // The checkpoint may be removed while it is read.
  }
  return found;
}

/// Returns true if the values are equal or both NaN.
KEEL_BODY bool are_same_numbers(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// Returns the values of a key by update. If an update has several lines, as with skipped updates, the last one counts.
KEEL_BODY std::map<std::int64_t, double> by_update(run_history const& run, std::string const& key) {
  std::map<std::int64_t, double> values;
  auto const curve = run.curves.find(key);
  if (curve == run.curves.end()) return values;
  for (curve_point const& point : curve->second.kept) values[point.update] = point.value;
  return values;
}

KEEL_BODY std::map<std::string, std::pair<double, double>> squares_by_layer(tensor_map const& a, tensor_map const& b) {
  std::map<std::string, std::pair<double, double>> squares;  // squared norms of the difference and of a
  auto const square = [](at::Tensor const& one) {
    double const norm = host_value(at::linalg_vector_norm(one.to(at::kDouble), 2));
    return norm * norm;
  };
  constexpr double infinity = std::numeric_limits<double>::infinity();
  auto const layer_of = [](std::string const& name) {
    auto const dot = name.rfind('.');
    return dot == std::string::npos ? name : name.substr(0, dot);
  };
  for (auto const& [name, tensor] : a) {
    if (!at::isFloatingType(tensor.scalar_type())) continue;
    auto& [difference, whole] = squares[layer_of(name)];
    auto const other = b.find(name);
    bool const fits = other != b.end() && other->second.sizes() == tensor.sizes();
    difference += fits ? square(tensor.to(at::kDouble) - other->second.to(at::kDouble)) : infinity;
    whole += square(tensor);
  }
  for (auto const& [name, tensor] : b) {
    if (at::isFloatingType(tensor.scalar_type()) && a.find(name) == a.end()) squares[layer_of(name)].first = infinity;
  }
  return squares;
}

KEEL_BODY void add_weights(run_comparison& to, std::filesystem::path const& a, std::filesystem::path const& b) {
  file_system files;
  if (!files.exists(a / "checkpoints") || !files.exists(b / "checkpoints")) return;
  checkpoint_store of_a(a / "checkpoints");
  checkpoint_store of_b(b / "checkpoints");
  auto const in_a = of_a.updates();
  auto const in_b = of_b.updates();
  for (std::int64_t const update : in_a) {
    if (std::find(in_b.begin(), in_b.end(), update) != in_b.end()) to.checkpoint = update;
  }
  if (!to.checkpoint) return;
  auto const weights = [&](checkpoint_store& store) { return read_weights(store.path_of_update(*to.checkpoint)); };
  for (auto const& [name, squares] : squares_by_layer(weights(of_a), weights(of_b))) {
    auto const [difference, whole] = squares;
    to.layers.push_back({name, difference == 0.0 ? 0.0 : std::sqrt(difference) / std::sqrt(std::max(whole, 1e-300))});
  }
  std::stable_sort(to.layers.begin(), to.layers.end(),
                   [](layer_distance const& one, layer_distance const& other) { return one.relative > other.relative; });
}

/// Compared keys, causes before effects: if several differ at the same update, the first one is reported as the cause.
inline constexpr std::array<char const*, 6> compared_keys{"lr", "tokens", "loss_scale", "loss", "gradient_norm", "skipped"};

/// Adds the fingerprints that the program gave to the newest start of the run.
KEEL_BODY void add_fingerprints(run_history const& run, std::map<std::string, std::string>& to) {
  nlohmann::json found;
  for (run_event const& event : run.events) {
    if (event.name == "begins" && event.details.contains("fingerprints")) found = event.details["fingerprints"];
  }
  if (!found.is_object()) return;
  for (auto const& [name, value] : found.items())
    to["fingerprint of " + printable(name, 60)] = value.is_string() ? printable(value.get<std::string>(), 60) : "";
}

KEEL_BODY std::optional<std::int64_t> first_other_batch(run_history const& a, run_history const& b) {
  std::map<std::int64_t, std::string> in_a;
  for (seen_batch const& one : a.batches) in_a[one.update] = one.checksum;
  std::optional<std::int64_t> first;
  for (seen_batch const& one : b.batches) {
    auto const other = in_a.find(one.update);
    if (other != in_a.end() && other->second != one.checksum && (!first || one.update < *first)) first = one.update;
  }
  return first;
}

KEEL_BODY std::string concluded(run_comparison const& found) {
  if (found.common_updates == 0) return "the records have no update in common";
  // The cause comes first: a different batch changes the loss in the same line.
  bool const by_data = found.batches_part && (found.records.empty() || *found.batches_part <= found.records.front().update);
  if (by_data &&
      (found.records.empty() || found.records.front().key != "lr" || found.records.front().update > *found.batches_part))
    return "they first differ in the data at update " + std::to_string(*found.batches_part) +
           ": different batches, or a different order";
  if (found.records.empty()) {
    std::string const all = "bitwise identical over all " + std::to_string(found.common_updates) + " common updates";
    return found.settings.empty() ? all : all + ", although the settings differ";
  }
  record_difference const& first = found.records.front();
  std::string const at = " at update " + std::to_string(first.update);
  bool const from_the_start = first.update <= 1;
  if (first.key == "lr")
    return "they first differ in the learning rate" + at + ": compare the schedules and the lengths of the runs";
  if (first.key == "tokens")
    return "they first differ in the data" + at + ": batches of different sizes, so a different order or source";
  if (first.key == "loss_scale") return "they first differ in the loss scale" + at;
  if (first.key == "skipped") return "they first differ" + at + ", which one skipped and the other did not";
  if (first.key == "gradient_norm")
    return "they first differ in the backward pass" + at +
           ": the losses are equal, the gradients are not (threads, kernels, recompute)";
  if (from_the_start)
    return "they first differ in the loss of the first update: different initial weights, data, data order or random numbers";
  return "they first differ in the loss" + at +
         ": earlier updates are bitwise identical, so the data or random numbers of that update differ, or a kernel is "
         "nondeterministic";
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY run_comparison compare_runs(std::filesystem::path const& a, std::filesystem::path const& b) {
  run_history const run_a = read_run_history(a);
  run_history const run_b = read_run_history(b);
  run_comparison found;
  found.name_a = run_a.name == run_b.name ? a.string() : run_a.name;
  found.name_b = run_a.name == run_b.name ? b.string() : run_b.name;
  file_system files;
  auto settings_a = detail::settings_of_state(files, a);
  auto settings_b = detail::settings_of_state(files, b);
  // A run without checkpoints has no settings except its recipe.
  if (settings_a.empty() || settings_b.empty()) settings_a = settings_b = {};
  detail::flatten(run_a.recipe.is_null() ? nlohmann::json::object() : run_a.recipe, "", settings_a);
  detail::flatten(run_b.recipe.is_null() ? nlohmann::json::object() : run_b.recipe, "", settings_b);
  detail::add_fingerprints(run_a, settings_a);
  detail::add_fingerprints(run_b, settings_b);
  detail::add_differences(settings_a, settings_b, found.settings);
  found.batches_part = detail::first_other_batch(run_a, run_b);
  for (char const* const key : detail::compared_keys) {
    auto const values_a = detail::by_update(run_a, key);
    auto const values_b = detail::by_update(run_b, key);
    std::int64_t common = 0;
    bool parted = false;
    for (auto const& [update, value] : values_a) {
      auto const other = values_b.find(update);
      if (other == values_b.end()) continue;
      ++common;
      if (parted || detail::are_same_numbers(value, other->second)) continue;
      found.records.push_back({key, update, value, other->second});
      parted = true;
    }
    found.common_updates = std::max(found.common_updates, common);
  }
  std::stable_sort(found.records.begin(), found.records.end(),
                   [](record_difference const& one, record_difference const& other) { return one.update < other.update; });
  detail::add_weights(found, a, b);
  found.conclusion = detail::concluded(found);
  return found;
}

KEEL_BODY std::string to_text(run_comparison const& found) {
  std::string text = found.name_a + " and " + found.name_b + ": " + found.conclusion + ".\n";
  auto const number = [](double value) {
    char digits[40];
    std::snprintf(digits, sizeof digits, "%.9g", value);
    return std::string(digits);
  };
  if (!found.settings.empty()) text += "\nsettings that differ:\n";
  for (setting_difference const& one : found.settings)
    text += "  " + one.name + ": " + (one.a.empty() ? "-" : one.a) + " | " + (one.b.empty() ? "-" : one.b) + "\n";
  if (!found.records.empty()) text += "\nfirst update at which each part of the record differs:\n";
  if (found.batches_part && found.records.empty()) text += "\nfirst update at which each part of the record differs:\n";
  if (found.batches_part) text += "  batches at update " + std::to_string(*found.batches_part) + "\n";
  for (record_difference const& one : found.records)
    text += "  " + one.key + " at update " + std::to_string(one.update) + ": " + number(one.a) + " | " + number(one.b) + "\n";
  if (found.checkpoint) {
    text += "\nweights at update " + std::to_string(*found.checkpoint) + ", distance relative to the norm of the first:\n";
    constexpr std::size_t most = 12;
    for (std::size_t i = 0; i < std::min(most, found.layers.size()); ++i)
      text += "  " + found.layers[i].name + ": " + number(found.layers[i].relative) + "\n";
    if (found.layers.size() > most)
      text += "  and " + std::to_string(found.layers.size() - most) + " layers with smaller distances\n";
  }
  return detail::without_control_codes(std::move(text));
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
