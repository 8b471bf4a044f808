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
    string_map const places = read_weight_map(source);
    std::map<std::string, std::vector<std::string>> names_of;
    for (auto const& [name, file] : places) names_of[file].push_back(name);
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
      for (std::string const& name : stored) {
        bool const is_alias = !places.contains(name) && std::any_of(names.begin(), names.end(), [&](std::string const& one) {
          return opened.is_same_tensor(one, name);
        });
        if (is_alias && !add(name)) throw_damaged_index(source, "names two files that both contain " + shown_name(name));
      }
    }
  }
  /// Tensors of these shapes and dtypes, whose values are not those of the files.
  tensor_map describe() const {
    tensor_map described;
    for (auto const& [name, file] : file_of_) {
      tensor_form const form = files_[file].form(name);
      described.emplace(name, at::empty({}, at::TensorOptions(form.type)).expand(form.shape));
    }
    return described;
  }
  at::Tensor read(std::string const& name) const { return files_[file_of_.at(name)].tensor(name); }

 private:
  std::deque<safetensors_file> files_;
  std::map<std::string, std::size_t> file_of_;
};

/// Reads weights for a model of which this rank has slices: of the tensors in the slices these elements, and others whole.
class pieces_reader {
 public:
  /// `expected`: tensors with the shapes of the whole model.
  pieces_reader(tensor_map const& expected, slice_map const& slices) : expected_(expected), slices_(slices) {}

  void read_tensors(tensor_map const& whole) {
    for (auto const& [name, tensor] : whole) add_whole(name, tensor);
  }
  void read_files(weights_files const& files, std::string const& source) {
    described_ = files.describe();
    require_same_model(expected_, described_, source);
    for (auto const& [name, tensor] : expected_) add_whole(name, files.read(name));
  }
  /// Has one file of the checkpoint in memory at a time: under shard::zero each rank has written one.
  void read_checkpoint(std::filesystem::path const& directory) {
    file_system files;
    manifest const all = read_manifest(directory);
    for (std::string const& file : tensor_file_names(all, "model")) {
      tensor_map whole;
      slices_of_tensors parts;
      read_tensors_into(whole, parts, files, directory, file, all, "");
      for (auto const& [name, tensor] : whole) {
        if (described_.contains(name)) fail_twice(directory / file, name);
        add_whole(name, tensor);
      }
      for (auto const& [name, of_tensor] : parts) {
        for (auto const& [part, values] : of_tensor) {
          // In another order of memory all of it is needed.
          auto const own = slices_.find(name);
          if (own != slices_.end() && own->second.sizes == part.sizes && !own->second.has_same_tensor(part)) {
            described_.clear();
            pieces_.clear();
            return read_tensors(read_content(files, directory, all, "model"));
          }
          if (described_.contains(name) && !divided_.contains(name)) fail_twice(directory / file, name);
          divided_.insert(name);
          add_part(directory / file, name, part, values);
        }
      }
    }
  }
  /// Throws checkpoint_error (E04) unless what was read is the model's.
  void require_model(std::string const& source) const { require_same_model(expected_, described_, source); }
  at::Tensor const& piece(std::string const& name) const { return pieces_.at(name); }

 private:
  [[noreturn]] static void fail_twice(std::filesystem::path const& file, std::string const& name) {
    throw_damaged_checkpoint(file, "contains " + shown_name(name) + ", which another file of the checkpoint contains too");
  }
  /// A tensor that the model does not have, or has with another shape, is described only, for require_model().
  bool is_wanted(std::string const& name, at::IntArrayRef sizes) const {
    auto const found = expected_.find(name);
    return found != expected_.end() && found->second.sizes() == sizes;
  }
  void add_whole(std::string const& name, at::Tensor const& whole) {
    described_.emplace(name, at::empty({}, at::TensorOptions(whole.scalar_type())).expand(whole.sizes()));
    if (!is_wanted(name, whole.sizes())) return;
    auto const own = slices_.find(name);
    pieces_.emplace(name, own == slices_.end() ? whole : cut_slice(whole, own->second));
  }
  void add_part(std::filesystem::path const& file, std::string const& name, tensor_slice const& part,
                at::Tensor const& values) {
    at::Tensor const described = at::empty({}, at::TensorOptions(values.scalar_type())).expand(part.sizes);
    auto const known = described_.emplace(name, described).first;
    if (known->second.scalar_type() != values.scalar_type())
      throw_damaged_checkpoint(file, "cannot be read: the slices of " + shown_name(name) + " have different dtypes");
    if (!is_wanted(name, part.sizes)) return;
    auto const own = slices_.find(name);
    // A whole tensor is a slice with all elements, in the order of the file.
    tensor_slice const wanted =
        own != slices_.end() ? own->second : tensor_slice{part.sizes, part.strides, 0, described.numel()};
    at::Tensor& piece = pieces_[name];
    if (!piece.defined()) {
      piece = at::empty({wanted.count}, values.options());
      if (own == slices_.end()) piece = piece.as_strided(part.sizes, part.strides);
    }
    copy_overlap(part, values, wanted, piece.as_strided({wanted.count}, {1}));
  }

  tensor_map const& expected_;
  slice_map const& slices_;
  tensor_map described_, pieces_;
  std::set<std::string> divided_;  ///< those that were in slices
};

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
  detail::pieces_reader read(expected, slices);
  if (slices.empty() || choice.averaged) {
    read.read_tensors(detail::read_weights_of(source, choice));
  } else if (file_system().exists(source / "manifest.json")) {
    read.read_checkpoint(source);
  } else {
    read.read_files(detail::weights_files(source), source.string());
  }
  read.require_model(source.string());
  for (auto const& [name, tensor] : own) {
    at::Tensor const target = tensor;
    target.copy_(read.piece(name));
  }
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
