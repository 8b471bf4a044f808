// Definitions for checkpoint_collectives.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <iterator>
#include <keel/checkpoint/read_checkpoint.hpp>
#include <keel/checkpoint/snapshot.hpp>
#include <keel/checkpoint/write_checkpoint.hpp>
#include <keel/collective/broadcast_string.hpp>
#include <keel/collective/collectives.hpp>
#include <keel/core/error.hpp>
#include <keel/determinism/seed.hpp>
#include <keel/evaluation/evaluate.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/rule/nonfinite.hpp>
#include <keel/shard/optimizer_shards.hpp>
#include <keel/shard/replicas.hpp>
#include <keel/shard/shared_buffers.hpp>
#include <keel/trainer/checkpoint_collectives.hpp>
#include <keel/trainer/collective_reader.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

inline constexpr char const* part_of_ranks = "ranks";
/// In the state: names of state tensors that are divided among the ranks. They belong to all ranks.
inline constexpr char const* part_of_divided = "divided";

inline nlohmann::json list_tensor_forms(tensor_map const& tensors) {
  nlohmann::json all = nlohmann::json::array();
  for (auto const& [name, tensor] : tensors)
    all.push_back({{"name", name}, {"type", static_cast<int>(tensor.scalar_type())}, {"sizes", tensor.sizes().vec()}});
  return all;
}

/// Broadcasts the tensors of rank `from`. Collective. `forms` is the result of list_tensor_forms on that rank. Removes the tensors from
/// `local` on rank `from`.
inline tensor_map broadcast_tensor_map(world_of_ranks const& world, tensor_map& local, nlohmann::json const& forms, int from) {
  tensor_map all;
  for (nlohmann::json const& form : forms) {
    auto const name = form.at("name").get<std::string>();
    at::Tensor one;
    if (world.rank() == from) {
      one = local.at(name).detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous();
      local.erase(name);
    } else {
      one =
          at::empty(form.at("sizes").get<std::vector<std::int64_t>>(), static_cast<at::ScalarType>(form.at("type").get<int>()));
    }
    broadcast_bytes(world, one, from);
    all.emplace(name, one);
  }
  return all;
}

/// Size in bytes; 0 for undefined and non-strided tensors, which the writer rejects by name.
inline std::uint64_t bytes_of(at::Tensor const& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided ? tensor.nbytes() : 0;
}

/// Throws nonfinite_error (N13) for a value that is not finite. Every rank checks its identical copy and so throws at the same time; the
/// writer's own check runs on rank 0 only, possibly while training continues.
inline void require_finite(tensor_map const& tensors, std::vector<std::string> const& names) {
  at::NoGradGuard const no_grad;
  constexpr std::int64_t piece = 1 << 18;
  for (std::string const& name : names) {
    auto const found = tensors.find(name);
    // Skips 8-bit dtypes: LibTorch's isfinite does not support them, and the writer does not check them either.
    if (found == tensors.end() || bytes_of(found->second) == 0 || found->second.element_size() == 1) continue;
    at::Tensor const whole = found->second.detach();
    at::Tensor const flat = whole.is_non_overlapping_and_dense()
                                ? whole.as_strided({whole.numel()}, {1}, whole.storage_offset())
                                : whole.reshape({-1});
    for (std::int64_t begin = 0; begin < flat.numel(); begin += piece) {
      if (!at::isfinite(flat.narrow(0, begin, std::min(piece, flat.numel() - begin))).all().item<bool>())
        throw broken_rule<nonfinite_error, rule::N13>(name + " is not finite");
    }
  }
}

/// Moves the tensors that are divided, or those that are not, to the result.
inline tensor_map take_tensors(tensor_map& from, slice_map const& slices, bool are_divided) {
  tensor_map taken;
  for (auto at = from.begin(); at != from.end();) {
    auto const next = std::next(at);
    if ((slices.count(at->first) > 0) == are_divided) taken.insert(from.extract(at));
    at = next;
  }
  return taken;
}

/// Throws world_error (E26) unless all ranks have the same optimizer tensors, and divide the same tensors. Collective.
inline void require_same_tensors(world_of_ranks const& world, snapshot const& content) {
  std::string names;
  for (auto const& [name, tensor] : content.optimizer) names += name + "\n";
  for (slice_map const* const slices : {&content.model_slices, &content.optimizer_slices, &content.tensor_slices}) {
    for (auto const& [name, slice] : *slices) names += "divided " + name + "\n";
  }
  if (!world.combine(reduce::min{}, broadcast_string(world, names, 0) == names))
    throw world_error(
        "E26",
        "the ranks no longer have the same optimizer state. Freeze, add and remove the same parameters, and call the same "
        "units, on all ranks.");
}

/// Replaces this rank's slices by whole tensors on rank 0, and removes them on the others. Collective.
inline void join_on_rank0(world_of_ranks const& world, tensor_map& tensors, slice_map& slices) {
  if (slices.empty()) return;
  at::NoGradGuard const no_grad;
  at::Tensor const own = at::zeros({static_cast<std::int64_t>(slices.size()), 2}, at::kLong);
  std::int64_t row = 0;
  for (auto const& [name, slice] : slices) {
    own[row][0] = slice.begin;
    own[row++][1] = slice.count;
  }
  at::Tensor const all = all_gather(world, own);
  auto const* const ranges = all.data_ptr<std::int64_t>();
  auto const rows = static_cast<std::int64_t>(slices.size());
  row = 0;
  for (auto const& [name, slice] : slices) {
    std::vector<tensor_slice> parts;
    for (int rank = 0; rank < world.size(); ++rank) {
      auto const* const range = ranges + 2 * (rank * rows + row);
      if (range[1] > 0) parts.push_back({slice.sizes, slice.strides, range[0], range[1]});
    }
    ++row;
    if (std::string const wrong = find_slice_error(parts); !wrong.empty()) throw_unequal_slices(name, wrong);
  }
  // By the rank's tensor: names that share it share the whole.
  std::unordered_map<c10::TensorImpl const*, at::Tensor> joined;
  row = 0;
  for (auto& [name, slice] : slices) {
    auto const range_of = [&](int rank) { return ranges + 2 * (rank * rows + row); };
    at::Tensor const values = tensors.at(name);
    auto const [known, is_first] = joined.try_emplace(values.unsafeGetTensorImpl());
    if (is_first) {
      std::int64_t longest = 0;
      for (int rank = 0; rank < world.size(); ++rank) longest = std::max(longest, range_of(rank)[1]);
      at::Tensor const padded = at::zeros({longest}, values.options().requires_grad(false));
      padded.narrow(0, 0, slice.count).copy_(values);
      at::Tensor const of_all = all_gather(world, padded);
      std::vector<slice_values> parts;
      for (int rank = 0; rank < world.size(); ++rank) {
        tensor_slice part = slice;
        part.begin = range_of(rank)[0];
        part.count = range_of(rank)[1];
        parts.push_back({part, of_all[rank].narrow(0, 0, part.count)});
      }
      if (world.rank() == 0) known->second = join_slices(parts);
    }
    ++row;
    if (world.rank() == 0) {
      tensors[name] = known->second;
    } else {
      tensors.erase(name);
    }
  }
  slices.clear();
}

/// Removes slices without elements: files contain none.
inline void drop_empty_slices(tensor_map& tensors, slice_map& slices) {
  std::erase_if(slices, [&](auto const& one) {
    if (one.second.count > 0) return false;
    tensors.erase(one.first);
    return true;
  });
}

inline bool is_not_finite(std::exception const& thrown) {
  auto const* const nonfinite = dynamic_cast<nonfinite_error const*>(&thrown);
  return nonfinite != nullptr && nonfinite->id() == rule::N13::id;
}

/// What rank 0 sends to the others if it throws.
inline nlohmann::json describe_failure(std::exception const& thrown) {
  return {{"threw", std::string(thrown.what())}, {"is_not_finite", is_not_finite(thrown)}};
}
/// Throws on the other ranks if rank 0 threw.
inline void throw_failure_of_rank0(nlohmann::json const& result) {
  if (!result.contains("threw")) return;
  auto const threw = result["threw"].get<std::string>();
  if (result.at("is_not_finite").get<bool>()) throw nonfinite_error(rule::N13::id, "rank 0: " + without_id(threw));
  throw world_error("E25", "rank 0 threw: " + threw);
}

KEEL_BODY checkpoint_collectives::checkpoint_collectives(world_of_ranks world) : world_(std::move(world)) {}

KEEL_BODY nlohmann::json checkpoint_collectives::on_rank0(std::function<nlohmann::json()> const& f) const {
  if (!is_shared()) return f();
  nlohmann::json found;
  std::exception_ptr thrown;
  if (world_.rank() == 0) {
    try {
      found["found"] = f();
    } catch (std::exception const& one) {
      thrown = std::current_exception();
      found = describe_failure(one);
    }
  }
  std::string const words = broadcast_string(world_, dump_message(found), 0);
  if (thrown) std::rethrow_exception(thrown);
  found = nlohmann::json::parse(words);
  throw_failure_of_rank0(found);
  return found["found"];
}

KEEL_BODY bool checkpoint_collectives::rank0_decides(std::function<bool()> const& f) const {
  return on_rank0([&] { return nlohmann::json(f()); }).get<bool>();
}

KEEL_BODY bool checkpoint_collectives::may_be_broken() const {
  auto const all = world_.last_collectives();
  return std::any_of(all.begin(), all.end(), [](recent_collective const& one) { return !one.is_completed; });
}

KEEL_BODY bool checkpoint_collectives::all_ranks_agree(bool local) const { return world_.combine(reduce::min{}, local); }

KEEL_BODY std::string checkpoint_collectives::exchange_failure_message(std::string const& local) const {
  return detail::exchange_failure_message(world_, local);
}

KEEL_BODY bool checkpoint_collectives::find_checkpoint(search const& find, file_system& files,
                                                       std::function<slice_choice(nlohmann::json const&)> const& choose,
                                                       snapshot& content, std::string& source) const {
  if (!is_shared())
    return find([&](std::filesystem::path const& directory) { return read_checkpoint(directory, files); }, content, source);
  collective_reader reader(world_, files, choose);
  if (!owns_checkpoints()) {
    nlohmann::json const result = reader.follow(content);
    throw_failure_of_rank0(result);
    if (result.at("found").is_null()) return false;
    source = result.at("found").get<std::string>();
    content.state = result.at("state");
    return true;
  }
  nlohmann::json result{{"found", nullptr}};
  std::exception_ptr thrown;
  try {
    if (find([&](std::filesystem::path const& directory) { return reader.read(directory); }, content, source))
      result = {{"found", source}, {"state", content.state}};
  } catch (std::exception const& one) {
    thrown = std::current_exception();
    result = describe_failure(one);
  }
  try {
    reader.end(result);
  } catch (world_error const&) {
    // Another rank exited. The local exception is more informative.
    if (!thrown) throw;
  }
  if (thrown) std::rethrow_exception(thrown);
  return !result.at("found").is_null();
}

KEEL_BODY snapshot checkpoint_collectives::gather(std::function<snapshot()> const& make, torch::nn::Module const& model,
                                                  writers who) const {
  if (!is_shared()) return make();
  snapshot content;
  std::string text, words;
  std::exception_ptr thrown;
  bool is_broken = false;
  // Buffers may differ: the program may have run the model after its last update, for example to generate samples.
  shared_buffers buffers;
  try {
    buffers.prepare({&model});
    content = make();
    // Each rank has other elements of them.
    tensor_map divided = content.model;
    require_finite(take_tensors(divided, content.model_slices, true), content.finite);
    text = text_of(content.state);
  } catch (std::exception const& one) {
    thrown = std::current_exception();
    words = one.what();
    is_broken = is_not_finite(one);
  }
  int const bad = world_.combine(reduce::max{}, thrown ? world_.rank() : -1);
  if (bad >= 0) {
    bool const of_all = world_.combine(reduce::max{}, is_broken);
    std::string const remote = broadcast_string(world_, words, bad);
    if (thrown) std::rethrow_exception(thrown);
    std::string const of_rank = "rank " + std::to_string(bad) + ": ";
    if (of_all) throw nonfinite_error(rule::N13::id, of_rank + without_id(remote));
    throw world_error("E25", of_rank + remote);
  }
  buffers.verify_sizes(world_);
  buffers.share(world_);
  require_same_tensors(world_, content);
  std::vector<std::string> divided_state;
  for (auto const& [name, slice] : content.tensor_slices) divided_state.push_back(name);
  tensor_map model_of_all = take_tensors(content.model, content.model_slices, false);
  require_replicas(world_, "the parameter or buffer", model_of_all);
  require_finite(model_of_all, content.finite);
  // Rank 0 writes what is whole of the model. Of the optimizer, the rank with the fewest bytes so far writes the next tensor.
  std::vector<std::uint64_t> bytes(static_cast<std::size_t>(world_.size()));
  for (auto const& [name, tensor] : model_of_all) bytes.front() += bytes_of(tensor);
  if (owns_checkpoints()) {
    content.model.merge(model_of_all);
  } else {
    content.finite.clear();
  }
  tensor_map optimizer_of_all = take_tensors(content.optimizer, content.optimizer_slices, false);
  require_replicas(world_, "the optimizer's", optimizer_of_all);
  std::erase_if(optimizer_of_all, [&](auto const& one) {
    auto const least = who == writers::rank0 ? bytes.begin() : std::min_element(bytes.begin(), bytes.end());
    *least += bytes_of(one.second);
    return least - bytes.begin() != world_.rank();
  });
  content.optimizer.merge(optimizer_of_all);
  for (auto const& [tensors, slices] : {std::pair(&content.model, &content.model_slices),
                                        {&content.optimizer, &content.optimizer_slices},
                                        {&content.tensors, &content.tensor_slices}}) {
    if (who == writers::rank0) {
      join_on_rank0(world_, *tensors, *slices);
    } else {
      drop_empty_slices(*tensors, *slices);
    }
  }
  nlohmann::json const first = nlohmann::json::parse(broadcast_string(world_, text, 0));
  nlohmann::json others = nlohmann::json::array();
  tensor_map of_others;
  for (int rank = 1; rank < world_.size(); ++rank) {
    nlohmann::json own;
    if (world_.rank() == rank)
      own = {{"patch", nlohmann::json::diff(first, nlohmann::json::parse(text))},
             {"tensors", list_tensor_forms(who == writers::rank0 ? content.tensors : tensor_map())}};
    nlohmann::json const of_rank = nlohmann::json::parse(broadcast_string(world_, own.dump(), rank));
    tensor_map const tensors = broadcast_tensor_map(world_, content.tensors, of_rank.at("tensors"), rank);
    if (!owns_checkpoints()) continue;
    others.push_back(of_rank.at("patch"));
    for (auto const& [name, tensor] : tensors) of_others.emplace(rank_prefix(rank) + name, tensor);
  }
  if (owns_checkpoints()) {
    content.state[part_of_ranks] = std::move(others);
    if (!divided_state.empty()) content.state[part_of_divided] = divided_state;
    content.tensors.merge(of_others);
  }
  return content;
}

KEEL_BODY std::int64_t checkpoint_world_size(snapshot const& content) {
  if (!content.state.is_object() || !content.state.contains(part_of_ranks)) return 1;
  return static_cast<std::int64_t>(content.state.at(part_of_ranks).size()) + 1;
}

KEEL_BODY bool select_rank_state(snapshot& content, int rank) {
  bool const has_it = rank < checkpoint_world_size(content);
  if (!content.state.is_object() || !content.state.contains(part_of_ranks)) return has_it;
  nlohmann::json const others = std::move(content.state.at(part_of_ranks));
  content.state.erase(part_of_ranks);
  auto const divided = content.state.value(part_of_divided, std::set<std::string>());
  content.state.erase(part_of_divided);
  if (has_it && rank > 0) content.state = content.state.patch(others.at(static_cast<std::size_t>(rank) - 1));
  std::string const own = rank_prefix(rank);
  tensor_map tensors;
  for (auto& [name, tensor] : content.tensors) {
    bool const is_of_a_rank = name.starts_with("ranks/");
    if (has_it && rank > 0) {
      if (name.starts_with(own)) tensors.emplace(name.substr(own.size()), tensor);
      if (divided.count(name) > 0) tensors.emplace(name, tensor);
    } else if (!is_of_a_rank) {
      tensors.emplace(name, tensor);
    }
  }
  content.tensors = std::move(tensors);
  return has_it;
}

KEEL_BODY void average_over_ranks(world_of_ranks const& world, std::string const& evaluation, evaluation_result& result) {
  if (world.size() == 1) return;
  std::string names = evaluation.empty() ? "" : evaluation + ": ";
  for (auto const& [name, value] : result.values)
    names += (&name == &result.values.front().first ? "" : ", ") + (name.empty() ? "loss" : name);
  std::string const first = broadcast_string(world, names, 0);
  if (int const other = world.combine(reduce::max{}, first == names ? -1 : world.rank()); other >= 0)
    throw world_error("E26", "rank " + std::to_string(other) + " evaluates " + broadcast_string(world, names, other) +
                                 ", but rank 0 evaluates " + first +
                                 ". Add the same evaluations, with the same values in the same order, on all ranks.");
  at::Tensor const sums = at::zeros({2 * static_cast<std::int64_t>(result.values.size())}, at::kDouble);
  auto* const own = sums.data_ptr<double>();
  for (std::size_t i = 0; i < result.values.size(); ++i) {
    own[2 * i] = result.values[i].second * result.weights[i];
    own[2 * i + 1] = result.weights[i];
  }
  all_reduce(world, sums);
  for (std::size_t i = 0; i < result.values.size(); ++i) {
    result.values[i].second = own[2 * i] / own[2 * i + 1];
    result.weights[i] = own[2 * i + 1];
  }
}

KEEL_BODY std::optional<uneven_end> find_uneven_end(world_of_ranks const& world, std::int64_t open, bool is_logged) {
  if (world.size() == 1) return std::nullopt;
  std::int64_t const fewest = world.combine(reduce::min{}, open * world.size() + world.rank());
  std::int64_t const most = world.combine(reduce::max{}, open);
  bool const is_logged_on_any = world.combine(reduce::max{}, is_logged);
  if (fewest / world.size() == most) return std::nullopt;
  return uneven_end{static_cast<int>(fewest % world.size()), is_logged_on_any};
}

KEEL_BODY std::uint64_t rank_seed(std::uint64_t seed, int rank) {
  return seed + 0x9e3779b97f4a7c15ull * static_cast<std::uint64_t>(rank);
}

KEEL_BODY void seed_generators(determinism::settings by, at::DeviceType device, int rank) {
  if (by.kind != determinism::kind::off) {
    by.seed = rank_seed(by.seed, rank);
    seed(by, device);
  } else if (rank > 0) {
    decorrelate_generators(device, rank);
  }
}

KEEL_BODY void decorrelate_generators(at::DeviceType device, int rank) {
  at::Tensor const now = libtorch::random_state(at::kCPU);
  auto const* const bytes = static_cast<char const*>(now.data_ptr());
  std::uint64_t const seed = rank_seed(XXH3_64bits(bytes, now.nbytes()), rank);
  libtorch::seed_random(at::kCPU, seed);
  if (device != at::kCPU) libtorch::seed_random(device, seed);
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
