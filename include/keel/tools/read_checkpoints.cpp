// Commands that read checkpoints and therefore need tensors.
#include <keel/libtorch/ivalue_first.hpp>

#include <algorithm>
#include <cstdio>
#include <keel/checkpoint/load_weights.hpp>
#include <keel/checkpoint/safetensors.hpp>
#include <keel/checkpoint/store.hpp>
#include <keel/checkpoint/verify.hpp>
#include <keel/diagnose/compare_runs.hpp>
#include <keel/diagnose/estimate.hpp>
#include <keel/json/load_config.hpp>
#include <keel/tools/commands.hpp>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace keel::tools {

namespace {

namespace fs = std::filesystem;

/// Returns the checkpoint at a path or the checkpoints in a run directory, oldest first.
std::vector<fs::path> checkpoints_of(fs::path const& path) {
  if (fs::exists(path / "manifest.json")) return {path};
  for (fs::path const& folder : {path / "checkpoints", path}) {
    checkpoint_store store(folder);
    std::vector<fs::path> found;
    for (checkpoint_id const& id : store.all()) found.push_back(store.path_of(id));
    if (!found.empty()) return found;
  }
  throw file_error("E02",
                   path.string() + " holds no checkpoint. Name a folder step-000000500, or the run directory around it.");
}

fs::path one_checkpoint(fs::path const& path) { return checkpoints_of(path).back(); }

std::string describe_tensor(at::Tensor const& tensor) { return c10::str(tensor.scalar_type(), " ", tensor.sizes()); }

/// Lists the leaves of a JSON tree by path.
void flatten(nlohmann::json const& value, std::string const& path, std::vector<std::pair<std::string, std::string>>& into) {
  if (value.is_object()) {
    for (auto const& [name, inner] : value.items()) flatten(inner, path.empty() ? name : path + "." + name, into);
  } else {
    into.emplace_back(path, value.dump().substr(0, 60));
  }
}

/// Prints the differences between two maps of tensors; returns the number of tensors that differ.
int diff_tensors(char const* name, tensor_map const& a, tensor_map const& b) {
  std::set<std::string> names;
  for (auto const& [key, tensor] : a) names.insert(key);
  for (auto const& [key, tensor] : b) names.insert(key);
  int different = 0;
  for (auto const& key : names) {
    auto const left = a.find(key);
    auto const right = b.find(key);
    std::string words;
    if (left == a.end() || right == b.end()) {
      words = left == a.end() ? "only in the second" : "only in the first";
    } else if (left->second.sizes() != right->second.sizes() || left->second.scalar_type() != right->second.scalar_type()) {
      words = describe_tensor(left->second) + " and " + describe_tensor(right->second);
    } else if (!at::equal(left->second, right->second)) {
      at::Tensor const apart = (left->second.to(at::kDouble) - right->second.to(at::kDouble)).abs();
      char text[96];
      std::snprintf(text, sizeof text, "%lld of %lld elements, %.3g apart at most",
                    static_cast<long long>(apart.ne(0).sum().item<std::int64_t>()), static_cast<long long>(apart.numel()),
                    apart.max().item<double>());
      words = text;
    } else {
      continue;
    }
    if (different++ == 0) std::printf("%s\n", name);
    std::printf("  %-32s%s\n", key.c_str(), words.c_str());
  }
  return different;
}

}  // namespace

int compare(fs::path const& run_a, fs::path const& run_b) {
  run_comparison const found = compare_runs(run_a, run_b);
  std::fputs(to_text(found).c_str(), stdout);
  return found.records.empty() && found.common_updates > 0 ? 0 : 1;
}

int estimate(fs::path const& recipe, fs::path const& weights, std::vector<std::string> const& frozen, int ranks,
             int state_per_parameter) {
  config const configured = load_config(recipe);
  bool const is_file = fs::is_regular_file(weights);
  tensor_map const model = is_file ? load_safetensors(weights).tensors : read_checkpoint(one_checkpoint(weights)).model;
  memory::breakdown sums;
  memory::detail::parameter_counter counter(sums, configured, {.state_per_parameter = state_per_parameter, .ranks = ranks});
  std::set<void const*> seen;
  std::vector<bool> is_used(frozen.size());
  for (auto const& [name, tensor] : model) {
    if (!seen.insert(tensor.data_ptr()).second) continue;
    // A file does not say which tensors are buffers: those of normalization are, and whatever has no gradient.
    if (!tensor.is_floating_point() || name.ends_with("running_mean") || name.ends_with("running_var")) {
      sums.buffers += static_cast<std::int64_t>(tensor.nbytes());
      continue;
    }
    bool is_trained = true;
    for (std::size_t i = 0; i < frozen.size(); ++i) {
      if (!name.starts_with(frozen[i])) continue;
      is_trained = false;
      is_used[i] = true;
    }
    counter.add(tensor, is_trained);
  }
  for (std::size_t i = 0; i < frozen.size(); ++i) {
    if (!is_used[i])
      throw config_error("E13", "--frozen " + frozen[i] + ": no tensor of " + weights.string() +
                                    " has a name that begins so. keel checkpoint show lists the names of a checkpoint.");
  }
  std::fputs(sums.describe().c_str(), stdout);
  return 0;
}

int verify_checkpoints(std::vector<fs::path> const& paths) {
  int damaged = 0;
  for (fs::path const& path : paths) {
    for (fs::path const& checkpoint : checkpoints_of(path)) {
      auto const found = find_damage(checkpoint);
      if (found.empty()) {
        manifest const all = read_manifest(checkpoint);
        std::uint64_t bytes = 0;
        for (auto const& [name, record] : all.files) bytes += record.bytes;
        std::printf("%s  whole: update %lld, %.1f MB\n", checkpoint.c_str(), static_cast<long long>(all.update),
                    static_cast<double>(bytes) / 1e6);
      } else {
        ++damaged;
        std::printf("%s  DAMAGED\n", checkpoint.c_str());
        for (auto const& words : found) std::printf("    %s\n", words.c_str());
      }
    }
  }
  return damaged == 0 ? 0 : 1;
}

int show_checkpoint(fs::path const& path) {
  fs::path const checkpoint = one_checkpoint(path);
  manifest const all = read_manifest(checkpoint);
  snapshot const content = read_checkpoint(checkpoint);
  std::printf("%s\n  update        %lld%s\n  written by    keel %s, LibTorch %s\n", checkpoint.c_str(),
              static_cast<long long>(all.update), all.requested ? ", requested" : "", all.keel.c_str(), all.libtorch.c_str());
  std::printf("recipe\n");
  try {
    std::fputs(describe(parse_config(all.recipe.dump())).c_str(), stdout);
  } catch (config_error const&) {
    // A recipe with custom policies or of another version is printed as it was written.
    std::printf("%s\n", all.recipe.dump(2).c_str());
  }
  std::printf("state\n");
  std::vector<std::pair<std::string, std::string>> fields;
  flatten(content.state.value("run", nlohmann::json::object()), "", fields);
  for (auto const& [name, value] : fields) std::printf("  %-32s%s\n", name.c_str(), value.c_str());
  for (auto const& [name, tensors] :
       {std::pair("model", &content.model), {"optimizer", &content.optimizer}, {"state", &content.tensors}}) {
    std::uint64_t bytes = 0;
    for (auto const& [key, tensor] : *tensors) bytes += tensor.nbytes();
    std::printf("%s: %zu tensors, %.1f MB\n", name, tensors->size(), static_cast<double>(bytes) / 1e6);
    for (auto const& [key, tensor] : *tensors) std::printf("  %-32s%s\n", key.c_str(), describe_tensor(tensor).c_str());
  }
  return 0;
}

int diff_checkpoints(fs::path const& first, fs::path const& second) {
  snapshot const a = read_checkpoint(one_checkpoint(first));
  snapshot const b = read_checkpoint(one_checkpoint(second));
  int different = 0;
  std::vector<std::pair<std::string, std::string>> left;
  std::vector<std::pair<std::string, std::string>> right;
  flatten(a.state, "", left);
  flatten(b.state, "", right);
  std::map<std::string, std::string> const before(left.begin(), left.end());
  std::map<std::string, std::string> const after(right.begin(), right.end());
  std::set<std::string> names;
  for (auto const& item : left) names.insert(item.first);
  for (auto const& item : right) names.insert(item.first);
  for (auto const& name : names) {
    auto const x = before.count(name) > 0 ? before.at(name) : "nothing";
    auto const y = after.count(name) > 0 ? after.at(name) : "nothing";
    if (x == y) continue;
    if (different++ == 0) std::printf("state.json\n");
    std::printf("  %-32s%s -> %s\n", name.c_str(), x.c_str(), y.c_str());
  }
  different += diff_tensors("model", a.model, b.model) + diff_tensors("optimizer", a.optimizer, b.optimizer) +
               diff_tensors("state", a.tensors, b.tensors);
  std::printf(different == 0 ? "the same\n" : "%d differences\n", different);
  return different == 0 ? 0 : 1;
}

int merge_checkpoint(fs::path const& from, fs::path const& file, bool best, bool averaged) {
  if (fs::exists(file)) throw file_error("E02", file.string() + " exists. Name another file, or remove it.");
  tensor_map const weights = read_weights(from, {.best = best, .averaged = averaged});
  save_safetensors(file, weights);
  std::printf("%s: %zu tensors, %.1f MB\n", file.c_str(), weights.size(), static_cast<double>(fs::file_size(file)) / 1e6);
  return 0;
}

}  // namespace keel::tools
