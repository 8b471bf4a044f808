// Definitions for load_weights.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <keel/checkpoint/load_weights.hpp>
#include <keel/checkpoint/model_state.hpp>
#include <keel/checkpoint/read_checkpoint.hpp>
#include <keel/checkpoint/safetensors.hpp>
#include <keel/checkpoint/safetensors_file.hpp>
#include <keel/checkpoint/sharded_safetensors.hpp>
#include <keel/checkpoint/store.hpp>
#include <keel/checkpoint/verify.hpp>
#include <keel/core/error.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

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
  throw checkpoint_error("E05", run.string() + " has no intact checkpoint. Check the path, or run `keel checkpoint verify`.");
}

/// A moving average in a checkpoint.
struct saved_average {
  std::string parameter;  ///< name of its parameter in the checkpoint's model
  at::Tensor value;
};

/// Returns the averages of a checkpoint: "weight" of "step.average.weight", and, of "step.critic.average.weight", where a part of a run
/// keeps it, the parameter of this name in the model that the part trains. Parts that train the model of another one come last, as in an
/// averaged evaluation.
inline std::vector<saved_average> averages_of(snapshot const& content) {
  constexpr std::string_view step = "step.", average = "average.";
  std::vector<saved_average> all, of_followers;
  for (auto const& [name, value] : content.tensors) {
    if (!name.starts_with(step)) continue;
    std::string const rest = name.substr(step.size());
    if (rest.starts_with(average)) {
      all.push_back({rest.substr(average.size()), value});
      continue;
    }
    auto const dot = rest.find('.');
    if (dot == std::string::npos || rest.compare(dot + 1, average.size(), average) != 0) continue;
    std::string const part = rest.substr(0, dot), parameter = rest.substr(dot + 1 + average.size());
    nlohmann::json::json_pointer const groups("/optimizers/" + part + "/groups");
    if (!content.state.contains(groups)) continue;
    for (nlohmann::json const& group : content.state.at(groups)) {
      for (nlohmann::json const& one : group.value("parameters", nlohmann::json::array())) {
        auto const full = one.is_string() ? one.get<std::string>() : std::string();
        auto const model = full.find('.');
        if (model == std::string::npos || full.substr(model + 1) != parameter) continue;
        (full.substr(0, model) == part ? all : of_followers).push_back({full, value});
      }
    }
  }
  all.insert(all.end(), of_followers.begin(), of_followers.end());
  return all;
}

inline tensor_map weights_of_checkpoint(std::filesystem::path const& directory, bool averaged) {
  if (!averaged) {
    file_system files;
    return read_content(files, directory, read_manifest(directory), "model");
  }
  snapshot content = read_checkpoint(directory);
  tensor_map& weights = content.model;
  bool found = false;
  for (auto const& [name, average] : averages_of(content)) {
    auto const weight = weights.find(name);
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

/// Returns the checkpoint or file that `from` names.
inline std::filesystem::path resolve_weights(std::filesystem::path const& from, weights_choice const& choice) {
  file_system files;
  if (files.exists(from / "checkpoints")) return chosen_checkpoint(from, choice);
  if (!files.exists(from / "manifest.json") && (choice.best || choice.averaged))
    throw error("E12", from.string() +
                           " is neither a run directory nor a checkpoint, so it has no best checkpoint and no average. Load it "
                           "without a weights_choice.");
  if (!files.exists(from))
    throw file_error("E02", from.string() + " does not exist. Name a run directory, a checkpoint, or a safetensors file.");
  return from;
}

inline tensor_map read_weights_of(std::filesystem::path const& source, weights_choice const& choice) {
  if (file_system().exists(source / "manifest.json")) return weights_of_checkpoint(source, choice.averaged);
  return (source.extension() == ".json" ? load_sharded_safetensors(source) : load_safetensors(source)).tensors;
}

/// A safetensors file, or those of an index, whose tensors are read one at a time.
class weights_files {
 public:
  explicit weights_files(std::filesystem::path const& source) {
    if (source.extension() != ".json") {
      files_.emplace_back(source);
      for (std::string const& name : files_.back().names()) file_of_.emplace(name, 0);
      return;
    }
    std::map<std::string, std::vector<std::string>> names_of;
    for (auto const& [name, file] : read_weight_map(source)) names_of[file].push_back(name);
    for (auto const& [file, names] : names_of) {
      auto const path = source.parent_path() / file;
      if (!file_system().exists(path)) throw_damaged_index(source, "names " + shown_name(file) + ", which does not exist");
      safetensors_file const& opened = files_.emplace_back(path);
      auto const add = [&](std::string const& name) { return file_of_.emplace(name, files_.size() - 1).second; };
      auto const stored = opened.names();
      for (std::string const& name : names) {
        if (!std::binary_search(stored.begin(), stored.end(), name))
          throw_damaged_index(source,
                              "assigns " + shown_name(name) + " to " + shown_name(file) + ", which does not contain it");
        add(name);
      }
      // An index does not list the other names of a tensor.
      std::set<std::string> const listed(names.begin(), names.end());
      for (std::string const& name : stored) {
        bool const is_alias = !listed.contains(name) && std::any_of(names.begin(), names.end(), [&](std::string const& one) {
          return opened.is_same_tensor(one, name);
        });
        if (is_alias && !add(name)) throw_damaged_index(source, "names two files that both contain " + shown_name(name));
      }
    }
  }
  std::map<std::string, std::size_t> const& file_of() const { return file_of_; }
  at::Tensor read(std::string const& name) const { return files_[file_of_.at(name)].tensor(name); }

 private:
  std::deque<safetensors_file> files_;
  std::map<std::string, std::size_t> file_of_;
};

/// What was read for a model of which this rank has slices.
struct read_pieces {
  tensor_map pieces;     ///< of those in the slices these elements, and others whole
  tensor_map described;  ///< tensors with the shapes and dtypes of whole ones
};

inline at::Tensor describe_tensor(at::Tensor const& like, at::IntArrayRef sizes) {
  return at::empty({}, at::TensorOptions(like.scalar_type())).expand(sizes);
}

inline void add_whole(read_pieces& to, slice_map const& slices, std::string const& name, at::Tensor const& whole) {
  auto const slice = slices.find(name);
  // A tensor of another shape is an error once all are described.
  bool const is_cut = slice != slices.end() && whole.sizes() == slice->second.sizes;
  to.described.emplace(name, describe_tensor(whole, whole.sizes()));
  to.pieces.emplace(name, is_cut ? cut_slice(whole, slice->second) : whole);
}

KEEL_BODY read_pieces cut_pieces(tensor_map const& whole, slice_map const& slices) {
  read_pieces read;
  for (auto const& [name, tensor] : whole) add_whole(read, slices, name, tensor);
  return read;
}

KEEL_BODY read_pieces read_pieces_of_files(std::filesystem::path const& source, slice_map const& slices) {
  weights_files const files(source);
  read_pieces read;
  for (auto const& [name, file] : files.file_of()) add_whole(read, slices, name, files.read(name));
  return read;
}

/// Has one file of the checkpoint in memory at a time: under shard::zero each rank has written one.
KEEL_BODY read_pieces read_pieces_of_checkpoint(std::filesystem::path const& directory, slice_map const& slices) {
  file_system files;
  manifest const all = read_manifest(directory);
  read_pieces read;
  for (std::string const& file : tensor_file_names(all, "model")) {
    tensor_map whole;
    slices_of_tensors parts;
    read_tensors_into(whole, parts, files, directory, file, all, "");
    for (auto const& [name, tensor] : whole) {
      if (read.described.contains(name))
        throw_damaged_checkpoint(directory / file,
                                 "contains " + shown_name(name) + ", which another file of the checkpoint contains too");
      add_whole(read, slices, name, tensor);
    }
    for (auto const& [name, of_tensor] : parts) {
      for (auto const& [part, values] : of_tensor) {
        auto const own = slices.find(name);
        bool const is_cut = own != slices.end() && own->second.sizes == part.sizes;
        // In another order of memory all of it is needed.
        if (is_cut && !own->second.has_same_tensor(part))
          return cut_pieces(read_content(files, directory, all, "model"), slices);
        // A whole tensor is a slice with all elements, in the order of the file.
        tensor_slice const wanted = is_cut ? own->second : tensor_slice{part.sizes, part.strides, 0, *count_elements(part)};
        read.described.emplace(name, describe_tensor(values, part.sizes));
        at::Tensor& piece = read.pieces[name];
        if (!piece.defined()) {
          piece = at::empty({wanted.count}, values.options());
          if (!is_cut) piece = piece.as_strided(part.sizes, part.strides);
        }
        copy_overlap(part, values, wanted, is_cut ? piece : piece.as_strided({wanted.count}, {1}));
      }
    }
  }
  return read;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY tensor_map read_weights(std::filesystem::path const& from, weights_choice const& choice) {
  return detail::read_weights_of(detail::resolve_weights(from, choice), choice);
}

KEEL_BODY void load_weights(torch::nn::Module& model, std::filesystem::path const& from, weights_choice const& choice) {
  load_weights(model_tensors(model), {}, from, choice);
}

KEEL_BODY void load_weights(tensor_map const& own, slice_map const& slices, std::filesystem::path const& from,
                            weights_choice const& choice) {
  auto const source = detail::resolve_weights(from, choice);
  tensor_map const expected = detail::expand_slices(own, slices);
  at::NoGradGuard const no_grad;
  detail::read_pieces saved;
  if (slices.empty() || choice.averaged) {
    saved = detail::cut_pieces(detail::read_weights_of(source, choice), slices);
  } else if (file_system().exists(source / "manifest.json")) {
    saved = detail::read_pieces_of_checkpoint(source, slices);
  } else {
    saved = detail::read_pieces_of_files(source, slices);
  }
  require_same_model(expected, saved.described, source.string());
  for (auto const& [name, tensor] : own) {
    at::Tensor const target = tensor;
    target.copy_(saved.pieces.at(name));
  }
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
