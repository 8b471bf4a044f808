// What the ranks of a run do together between updates. Rank 0 alone has the checkpoints of a run: it reads one for all, and writes one of
// all, with what differs on each other rank: its random numbers, its place in the data, its registered state. So a save is complete or not
// there, whichever rank is killed, and no rank but 0 needs the file system that holds it.
// Left out: ranks that write side by side; what all have is written once.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

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

namespace keel {

struct evaluation_result;
struct snapshot;

namespace detail {

/// All functions but the first ones are called by all ranks, and throw world_error (E25) where one of them is gone.
class run_of_ranks {
 public:
  run_of_ranks() = default;
  explicit run_of_ranks(world_of_ranks world);

  bool is_shared() const { return world_.size() > 1; }
  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }
  /// This rank has the checkpoints.
  bool writes() const { return world_.rank() == 0; }

  /// What rank 0 finds. What it throws there is thrown; the others throw world_error (E25) with its words.
  nlohmann::json of_first(std::function<nlohmann::json()> const& find) const;
  bool first_says(std::function<bool()> const& find) const {
    return of_first([&] { return nlohmann::json(find()); }).get<bool>();
  }
  /// True where all ranks say so.
  bool all_say(bool mine) const;

  /// A checkpoint that rank 0 finds and all of them get, whole; false: it finds none. `source`: where it was.
  bool share(std::function<bool(snapshot&, std::string&)> const& find, snapshot& content, std::string& source) const;

  /// One checkpoint of what each rank has of it, on rank 0; the others keep what they made. The buffers of `model` are rank 0's from here on. What `make` throws on one of them is thrown by
  /// all: nonfinite_error (N13) as such, with the rank. Throws world_error (E26) that names a parameter, a buffer or a tensor of the
  /// optimizer that is not rank 0's. `trained`: its optimizers, of which state in shares becomes whole.
  snapshot gather(std::function<snapshot()> const& make, std::vector<trained_optimizer> const& trained,
                  torch::nn::Module const& model) const;

 private:
  void make_whole(tensor_map& of_optimizers, std::vector<trained_optimizer> const& trained) const;

  world_of_ranks world_;
};

/// Leaves in a checkpoint what is rank `rank`'s. False where it has none of that rank: it is as of rank 0 then.
bool take_own_part(snapshot& content, int rank);
/// Of how many ranks a checkpoint is.
std::int64_t ranks_of_checkpoint(snapshot const& content);

/// All ranks: each looked at its own batches, and gets the means over those of all. Throws world_error (E26) where they evaluate other values.
void combine_over(world_of_ranks const& world, evaluation_result& result);

/// A seed that no other rank has; rank 0 keeps the recipe's.
std::uint64_t seed_of_rank(std::uint64_t seed, int rank);
/// A run begins: seeds the generators as a recipe's determinism says. Of several ranks each draws other numbers, also where the program seeds all
/// of them alike.
void begin_random(determinism::settings by, at::DeviceType device, int rank);
/// The generators go on with numbers that no other rank draws, which had the same until now.
void separate_random(at::DeviceType device, int rank);

}  // namespace detail

}  // namespace keel

#if !__has_include(<keel_bodies_are_compiled>)
#include <keel/trainer/run_of_ranks.ipp>
#endif
