// Collective operations of a run between updates, above all checkpoints. Shared state is stored once; random state, data position and
// registered state are stored per rank. Rank 0 loads for all ranks, and creates, finalizes and renames a checkpoint, so a save is atomic
// even if a rank is killed. Ranks that share its file system write in parallel; otherwise rank 0 writes everything.
// Left out: writing the model from several ranks, because its weights would not be in one file then.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <keel/checkpoint/tensor_map.hpp>
#include <keel/checkpoint/trained_optimizer.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/config/config.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

struct evaluation_result;
struct snapshot;

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// All functions from on_rank0() on are collective, and throw world_error (E25) if a rank exited or hangs.
class checkpoint_collectives {
 public:
  checkpoint_collectives() = default;
  explicit checkpoint_collectives(world_of_ranks world);

  bool is_shared() const { return world_.size() > 1; }
  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }
  /// How long a collective waits for the other ranks.
  std::chrono::milliseconds timeout() const { return world_.timeout(); }
  /// Between two collectives: one of them has not come to its end, because a rank is gone or too late.
  bool may_be_broken() const;
  /// This rank has the checkpoints, whoever writes files of them.
  bool writes() const { return world_.rank() == 0; }

  /// What rank 0 finds. What it throws there is thrown; the others throw world_error (E25) with its words, and nonfinite_error (N13) as such.
  nlohmann::json on_rank0(std::function<nlohmann::json()> const& find) const;
  bool rank0_decides(std::function<bool()> const& find) const {
    return on_rank0([&] { return nlohmann::json(find()); }).get<bool>();
  }
  /// True where all ranks say so.
  bool all_ranks_agree(bool local) const;
  /// What one rank failed by, with the rank; empty where none did.
  std::string first_failure_message(std::string const& local) const;

  /// A checkpoint that rank 0 finds and all of them get; false: it finds none. `source`: where it was. Of the state of an optimizer in
  /// `trained` that is in shares each rank keeps its own ones, so that none but rank 0 ever has the whole.
  bool share(std::function<bool(snapshot&, std::string&)> const& find, std::vector<trained_optimizer> const& trained,
             snapshot& content, std::string& source) const;

  /// Who writes a checkpoint.
  enum class writers : unsigned char { first, all };
  /// One checkpoint of what each rank has of it, for rank 0, or each rank's portion, without the model on all but rank 0. The buffers of
  /// `model` are rank 0's from here on. What `make` throws on one of them is thrown by all: nonfinite_error (N13) as such, with the rank.
  /// Throws world_error (E26) that names a parameter, a buffer or a tensor of the optimizer that is not rank 0's. `trained`: its optimizers,
  /// of which state in shares becomes whole on the rank that writes it.
  snapshot gather(std::function<snapshot()> const& make, std::vector<trained_optimizer> const& trained,
                  torch::nn::Module const& model, writers who) const;

 private:
  /// Leaves each rank what it is to write; `rank_for` says which rank writes a tensor of so many bytes.
  void partition_tensors(tensor_map& of_optimizers, std::vector<trained_optimizer> const& trained,
                         std::function<int(std::uint64_t)> const& rank_for) const;

  world_of_ranks world_;
};

/// Leaves in a checkpoint what is rank `rank`'s. False where it has none of that rank: it is as of rank 0 then.
bool select_rank_state(snapshot& content, int rank);
/// Of how many ranks a checkpoint is.
std::int64_t checkpoint_world_size(snapshot const& content);

/// All ranks: each looked at its own batches, and gets the means over those of all. Throws world_error (E26) where they evaluate other values.
void average_over_ranks(world_of_ranks const& world, std::string const& evaluation, evaluation_result& result);

/// Of an epoch's end where one rank has accumulated more micro-batches than another.
struct uneven_end {
  int rank;        ///< the first with fewest
  bool is_logged;  ///< by one of them
};
/// All ranks: `open` micro-batches wait for the rest of an update here. Nothing where that is the same on all.
std::optional<uneven_end> find_uneven_end(world_of_ranks const& world, std::int64_t open, bool is_logged);

/// A seed that no other rank has; rank 0 keeps the recipe's.
std::uint64_t rank_seed(std::uint64_t seed, int rank);
/// A run begins: seeds the generators as a recipe's determinism says. Of several ranks each draws other numbers, also where the program seeds all
/// of them alike.
void seed_generators(determinism::settings by, at::DeviceType device, int rank);
/// The generators go on with numbers that no other rank draws, which had the same until now.
void decorrelate_generators(at::DeviceType device, int rank);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/checkpoint_collectives.ipp>
#endif
