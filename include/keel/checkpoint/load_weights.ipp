// Definitions for load_weights.hpp.
#pragma once

#include <keel/checkpoint/load_weights.hpp>
#include <keel/checkpoint/model_state.hpp>
#include <keel/checkpoint/read_checkpoint.hpp>
#include <keel/checkpoint/safetensors.hpp>
#include <keel/checkpoint/sharded_safetensors.hpp>
#include <keel/checkpoint/store.hpp>
#include <keel/checkpoint/verify.hpp>
#include <keel/core/error.hpp>
#include <string>
#include <string_view>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Returns the checkpoint of the run directory that `choice` selects.
inline std::filesystem::path chosen_checkpoint(std::filesystem::path const& run, weights_choice const& choice) {
  checkpoint_store store(run / "checkpoints");
  for (checkpoint_id const& id : store.newest_first()) {
    auto directory = store.path_of(id);
    if (!find_damage(directory).empty()) continue;
    if (!choice.best) return directory;
    auto const best = read_manifest(directory).best;
    if (best.empty())
      throw checkpoint_error(
          "E04", run.string() + " has no best checkpoint. Train with keel::checkpoint::keep_best, or load the newest.");
    return store.path_of_update(best.front());
  }
  throw checkpoint_error(
      "E05", run.string() + " has no intact checkpoint. Check the path, or run keel's example `checkpoint verify`.");
}

/// Returns the parameter whose moving average is stored as `name`: "weight" of "step.average.weight", and "critic.weight" of
/// "step.critic.average.weight", where a part of a run keeps it; empty for any other tensor.
inline std::string averaged_parameter(std::string const& name) {
  constexpr std::string_view step = "step.", average = "average.";
  if (!name.starts_with(step)) return {};
  std::string const rest = name.substr(step.size());
  if (rest.starts_with(average)) return rest.substr(average.size());
  auto const dot = rest.find('.');
  bool const is_of_part = dot != std::string::npos && rest.compare(dot + 1, average.size(), average) == 0;
  return is_of_part ? rest.substr(0, dot + 1) + rest.substr(dot + 1 + average.size()) : std::string();
}

inline tensor_map weights_of_checkpoint(std::filesystem::path const& directory, bool averaged) {
  file_system files;
  manifest const all = read_manifest(directory);
  tensor_map weights = read_tensors(files, directory, "model.safetensors", all);
  if (!averaged) return weights;
  bool found = false;
  for (auto const& [name, average] : read_tensors(files, directory, "state.safetensors", all)) {
    auto const weight = weights.find(averaged_parameter(name));
    if (weight == weights.end()) continue;
    // Tied weights are one tensor with several names; the average is stored under the first name.
    at::Tensor const parameter = weight->second;
    for (auto& [other, value] : weights) {
      if (value.is_same(parameter)) value = average.to(parameter.scalar_type());
    }
    found = true;
  }
  if (!found)
    throw checkpoint_error(
        "E04", directory.string() + " contains no moving average. Train with keel::ema<0.999>, or load the parameters.");
  return weights;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY void load_weights(torch::nn::Module& model, std::filesystem::path const& from, weights_choice const& choice) {
  file_system files;
  bool const is_run = files.exists(from / "checkpoints");
  bool const is_directory = is_run || files.exists(from / "manifest.json");
  if (!is_directory && (choice.best || choice.averaged))
    throw error("E12", from.string() +
                           " is neither a run directory nor a checkpoint, so it has no best checkpoint and no average. Load it "
                           "without a weights_choice.");
  if (is_directory) {
    auto const directory = is_run ? detail::chosen_checkpoint(from, choice) : from;
    return load_model(model, detail::weights_of_checkpoint(directory, choice.averaged), directory.string());
  }
  if (!files.exists(from))
    throw file_error("E02", from.string() + " does not exist. Name a run directory, a checkpoint, or a safetensors file.");
  bool const is_index = from.extension() == ".json";
  load_model(model, (is_index ? load_sharded_safetensors(from) : load_safetensors(from)).tensors, from.string());
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
