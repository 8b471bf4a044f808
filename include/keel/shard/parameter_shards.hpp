// shard::zero<3>: shards parameters, each on its elements in memory order (shard_range.hpp), grouped by keel::unit (Rajbhandari et al. 2020,
// stage Pos+g+p; Zhao et al. 2023, "PyTorch FSDP"). The parameters of a unit's module are gathered before its forward pass and freed after
// it, and gathered again when the backward pass reaches the unit. A module's first call as a unit shards its parameters. Those that no unit
// has stay whole, as do those whose memory other tensors share. shard_parameters() shards a module before there is a step, so that a model can
// be built that is larger than the memory of one rank.
// A freed parameter keeps its tensor and its storage object, so that tensors that autograd saved in the forward pass are valid again once it
// is gathered. A unit stays gathered in the backward pass until an earlier unit begins its own: autograd runs nodes in the reverse order of
// their forward calls, so by then no node of it is left. If a node still needs it, for instance of a second output, it is gathered again.
// All ranks must call the same units in the same order. Nested units belong to the outermost one. The next unit is gathered while one computes
// (prefetched) once two passes in a row called the same units (expected_passes.hpp).
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <keel/checkpoint/tensor_slice.hpp>
#include <keel/collective/transport.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/core/parameters.hpp>
#include <keel/recompute/unit_parameters.hpp>
#include <keel/shard/shard_range.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// True if no other tensor shares the parameter's memory, so that it can be freed.
bool owns_memory(at::Tensor const& parameter);

/// Throws error (E11) if a parameter of the model is sharded: call it for a step without shard::zero<3>.
void require_whole_parameters(torch::nn::Module const& model);

class parameter_shards final : public unit_parameters, public std::enable_shared_from_this<parameter_shards> {
 public:
  enum class pass : bool { forward, backward };
  /// Called before a unit is gathered, and at its first call, with what follow_gather() needs and the unit's name, once this rank has the
  /// memory. If it throws, nothing is gathered.
  using before_gather = std::function<void(pass of, double collective, std::string const& name)>;

  /// `trained`: the optimizer's parameters, whose shards are those of optimizer_shards and gradient_shards; it must outlive this object.
  /// Takes the shards that shard_parameters() or an earlier step has left; trained_changed() divides them as the others are. Throws error
  /// (E11) if another step shards a module of `model`, or if they are of another world.
  static std::shared_ptr<parameter_shards> make(world_of_ranks world, torch::nn::Module& model, parameter_list const& trained,
                                                before_gather announce = {});
  ~parameter_shards() override;

  std::shared_ptr<unit_call> call(void const* module) override;
  void restore(c10::StorageImpl const* memory) override;
  /// Call after each backward pass, also if it threw: frees what it gathered.
  void end_backward();

  /// Starts the gather of a later call, unless it was started: gather() or follow_gather() completes it, and waits only then. At most two
  /// at a time. Collective. Allocates nothing after prepare_buffers().
  void begin_gather(double collective);
  /// Takes part in a gather of other ranks, without having the parameters. Allocates nothing after prepare_buffers().
  void follow_gather(double collective);
  /// Allocates the buffers of the gathers of all units that were called.
  void prepare_buffers();
  /// Ends the gathers: the step ends, but tensors that autograd saved may still refer to this object. Parameters stay freed, because the
  /// shards of the other ranks cannot be gathered here. `keeps_shards`: they keep their shards for a later step.
  void close(bool keeps_shards = false) noexcept;

  /// This rank's shard of a parameter, of one dimension; undefined while the parameter is whole. Write to it only between updates.
  at::Tensor shard_of(at::Tensor const& parameter) const;
  /// What part of a parameter this rank's shard is, or will be.
  tensor_slice slice_of(at::Tensor const& parameter) const;
  /// True if a unit may shard the parameter, or has.
  bool may_shard(at::Tensor const& parameter) const { return entry_of_.count(parameter.unsafeGetTensorImpl()) > 0; }
  /// The elements of this rank's shard in a tensor with a parameter's shape, such as its average: a view if the strides are equal.
  at::Tensor cut(at::Tensor const& parameter, at::Tensor const& whole) const;
  /// The whole tensor of such shards. Collective.
  at::Tensor assemble(at::Tensor const& parameter, at::Tensor const& shard) const;
  struct whole_buffers {
    at::Tensor own, all, whole;
  };
  /// What assemble() needs, so that ranks can agree on whether all of them have the memory.
  whole_buffers allocate_whole(at::Tensor const& parameter, at::Tensor const& shard) const;
  at::Tensor assemble(at::Tensor const& parameter, at::Tensor const& shard, whole_buffers buffers) const;
  /// Call once after make(), and after the list of trained parameters changed, between updates. Collective.
  void trained_changed();

  /// Gathers all parameters until drop_all(), which shards them again, with the values that they then have. Collective, both. May be nested.
  void gather_all();
  void drop_all();
  bool are_all_gathered() const { return gather_depth_ > 0; }
  /// Makes all parameters whole for good. Collective.
  void unshard();
  /// Names the parameters that can be sharded, one a line: they must be the same on all ranks.
  std::string describe() const;

  /// Names of the parameters that stay whole because no unit has them.
  std::vector<std::string> names_outside_units() const;

 private:
  struct entry {
    at::Tensor parameter;
    std::string name;
    std::size_t index = 0;                  ///< of its shard range
    at::Tensor shard = {};                  ///< valid if `is_sharded`; has the version of the parameter
    std::unique_ptr<kept_shard> kept = {};  ///< for close(), which must not allocate
    bool is_sharded = false;
    std::size_t unit = 0;  ///< the unit that has used it last
    int users = 0;         ///< calls that need it now
    bool is_present = true;
  };
  struct unit_group {
    std::string name;
    std::vector<std::size_t> entries;
    bool was_called = false;  ///< on all ranks, so that its parameters are sharded
  };
  /// A call whose backward pass needs its unit.
  struct held_call {
    std::size_t unit;
    std::uint64_t begin, end;
  };
  /// Byte buffers of a gather, kept for the next one, and the gather that uses them.
  struct gather_buffers {
    at::Tensor sent = {}, received = {};
    std::optional<std::size_t> unit = {};  ///< none: they are not in use
    std::unique_ptr<pending_collective> pending = {};
  };
  class one_call;

  parameter_shards(world_of_ranks world, torch::nn::Module& model, parameter_list const& trained, before_gather announce);
  element_range range_of(entry const& one, int rank) const;
  void take_kept_shard(entry& one, kept_shard const& kept);
  void use(std::size_t unit);
  void drop(std::size_t unit);
  void hold(held_call const& call);
  /// Gathers a unit's parameters if some are freed.
  void gather(std::size_t unit, pass of);
  void add_unit(torch::nn::Module const& module, std::string const& name);
  /// Those of a unit's parameters that are sharded.
  std::vector<std::size_t> sharded_entries_of(std::size_t unit) const;
  /// Bytes of a shard in a gather: parameters of all dtypes are aligned.
  std::int64_t aligned_bytes(entry const& one, int rank) const;
  /// Bytes that each rank sends to gather a unit: those of the rank with most.
  std::int64_t bytes_of(std::size_t unit) const;
  void prepare(gather_buffers& buffers, std::size_t unit) const;
  gather_buffers* find_buffers_of(std::size_t unit);
  /// Sends this rank's shards of a unit, unless that was begun.
  gather_buffers& begin(std::size_t unit);
  /// Waits for the gather that `buffers` are used for, and copies what it brought to the parameters for which `is_written`.
  template <class IsWritten>
  void finish(gather_buffers& buffers, IsWritten const& is_written);
  /// Shards and frees a parameter that no call needs, unless all are gathered.
  void free_unused(entry& one);
  void allocate_shard(entry& one) const;
  static void adopt_shard(entry& one, at::Tensor const& shard);
  /// Copies this rank's elements of a whole parameter to its shard.
  void write_shard(entry& one);

  world_of_ranks world_;
  torch::nn::Module& model_;
  parameter_list const& trained_;
  before_gather announce_;
  std::vector<entry> entries_;
  std::unordered_map<c10::TensorImpl const*, std::size_t> entry_of_;
  std::unordered_map<void const*, std::size_t> unit_of_module_;
  std::vector<unit_group> units_;
  std::vector<held_call> held_;  ///< calls whose backward pass has begun
  std::array<gather_buffers, 2> buffers_;
  std::uint64_t clock_ = 0;
  std::vector<std::size_t> gathered_units_;  ///< those that gather_all() uses
  int gather_depth_ = 0;
  bool is_closed_ = false;
  /// Backward passes run in threads of LibTorch. Recursive: announce_ may call follow_gather().
  mutable std::recursive_mutex mutex_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/shard/parameter_shards.ipp>
#endif
