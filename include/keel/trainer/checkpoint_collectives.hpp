// Collective operations of a run between updates, mainly for checkpoints. Shared state is stored once; random state, data position and
// registered state are stored per rank. Rank 0 creates, finalizes and renames a checkpoint, so a save is atomic even if a rank is killed.
// Ranks that share rank 0's file system write in parallel: their slices of what is divided among them, and a portion of the rest. Otherwise
// rank 0 writes everything, with divided tensors joined. All ranks read a checkpoint together (collective_reader.hpp).
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <keel/checkpoint/store.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/config/config.hpp>
#include <keel/core/file_system.hpp>
#include <keel/trainer/collective_reader.hpp>
#include <nlohmann/json_fwd.hpp>
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
  /// Call between two collectives. True if one did not complete, because a rank exited or timed out.
  bool may_be_broken() const;
  /// True on the rank that owns the checkpoints: rank 0, even if all ranks write files.
  bool owns_checkpoints() const { return world_.rank() == 0; }

  /// Calls `f` on rank 0 and broadcasts its result. If it throws, rank 0 rethrows; the others throw nonfinite_error (N13) if it was one,
  /// else world_error (E25) with its message.
  nlohmann::json on_rank0(std::function<nlohmann::json()> const& f) const;
  bool rank0_decides(std::function<bool()> const& f) const;
  /// True if `local` is true on all ranks.
  bool all_ranks_agree(bool local) const;
  /// The failure message of one rank, with its number; empty if all ranks passed an empty `local`.
  std::string exchange_failure_message(std::string const& local) const;

  /// Searches for a checkpoint on rank 0, by its path; false if there is none. `read` reads one, on all ranks; the one that is found must be
  /// the last that it read.
  using search = std::function<bool(checkpoint_store::reader const& read, snapshot& content, std::string& source)>;
  /// Returns, by `content` and `source`, the checkpoint that `find` finds, as collective_reader reads it. False if there is none. `choose`:
  /// as there. Throws as on_rank0() if `find` throws.
  bool find_checkpoint(search const& find, file_system& files, std::function<slice_choice(nlohmann::json const&)> const& choose,
                       snapshot& content, std::string& source) const;

  /// The ranks that write a checkpoint.
  enum class writers : unsigned char { rank0, all };
  /// Makes a checkpoint from the snapshots that `make` returns. With writers::all each rank gets the portion that it writes: its slices of
  /// divided tensors, and some of the others; rank 0 has the model's. With writers::rank0 rank 0 gets all of it, and joins divided tensors,
  /// one at a time. Sets the buffers of `model` to those of rank 0. If `make` throws on one rank, all throw: nonfinite_error (N13) if it was
  /// one, else world_error (E25). Throws world_error (E26), which names a tensor that differs from rank 0's.
  snapshot gather(std::function<snapshot()> const& make, torch::nn::Module const& model, writers who) const;

 private:
  world_of_ranks world_;
};

/// Reduces a checkpoint to the state of rank `rank`. If it has none for that rank, uses that of rank 0 and returns false.
bool select_rank_state(snapshot& content, int rank);
/// Number of ranks that a checkpoint was saved by.
std::int64_t checkpoint_world_size(snapshot const& content);

/// Replaces the means over each rank's own batches with the weighted means over all ranks. Collective. Throws world_error (E26) if the
/// ranks evaluate different values.
void average_over_ranks(world_of_ranks const& world, std::string const& evaluation, evaluation_result& result);

/// Describes the end of an epoch at which the ranks have accumulated different numbers of micro-batches.
struct uneven_end {
  int rank;        ///< the lowest rank with the fewest
  bool is_logged;  ///< at least one rank logged it already
};
/// Compares `open`, the micro-batches in the open update, over all ranks; nullopt if it is the same on all. Collective.
std::optional<uneven_end> find_uneven_end(world_of_ranks const& world, std::int64_t open, bool is_logged);

/// Derives a distinct seed for each rank; that of rank 0 is `seed`.
std::uint64_t rank_seed(std::uint64_t seed, int rank);
/// Seeds the generators at the start of a run, as the recipe's determinism policy specifies. Each rank draws different numbers, even if the
/// program seeds all ranks alike.
void seed_generators(determinism::settings by, at::DeviceType device, int rank);
/// Reseeds the generators, which had the same state on all ranks, with a distinct seed for each rank.
void decorrelate_generators(at::DeviceType device, int rank);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/checkpoint_collectives.ipp>
#endif
