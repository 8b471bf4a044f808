// shard::zero<1>: shards the optimizer state over the ranks (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion
// Parameter Models", stage Pos). Each rank updates its shard of every parameter and all-gathers the other shards. Parameters and gradients
// are replicated, so norms, clipping, averages and evaluations equal those of shard::replicate. An elementwise optimizer yields the same
// bits. Under zero<2> the shards have their own gradients, which set_gradients() sets (gradient_shards.hpp).
// The optimizer refers to the full parameters, except during an update, when views of the shards replace them.
// Not supported: assigning whole parameters to ranks, which saves nothing if one parameter is most of the model.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <keel/checkpoint/tensor_map.hpp>
#include <keel/checkpoint/tensor_slice.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/core/parameters.hpp>
#include <keel/shard/parameter_shards.hpp>
#include <keel/shard/shard_range.hpp>
#include <optional>
#include <string>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

class optimizer_shards {
 public:
  /// Shards the state that the optimizer already has. Needs at least two ranks. `optimizer` and `parameters` must outlive this object.
  /// Throws error (E11) for a parameter whose memory is not dense, and for state of another step's shards; S05 for state that keel does not
  /// support.
  /// `of_units`: under zero<3>, the shards of parameters that units gather; null otherwise.
  optimizer_shards(world_of_ranks world, torch::optim::Optimizer& optimizer, parameter_list const& parameters,
                   parameter_shards* of_units = nullptr);
  optimizer_shards(optimizer_shards const&) = delete;
  optimizer_shards& operator=(optimizer_shards const&) = delete;
  /// Removes the state of the shards from the optimizer: it is of no use without that of the other ranks.
  ~optimizer_shards();

  /// Replaces the optimizer's parameters by this rank's shards during its lifetime. Does nothing if `shards` is null. May be nested.
  class scope {
   public:
    enum class gradients : bool { without, with };
    explicit scope(optimizer_shards* shards, gradients which = gradients::without);
    scope(scope const&) = delete;
    scope& operator=(scope const&) = delete;
    ~scope();

   private:
    optimizer_shards* shards_;
  };

  /// Sets the gradients of the shards, in their order; the next update uses these. Undefined for a parameter without a gradient.
  void set_gradients(std::vector<at::Tensor> const& gradients);
  /// Forgets the gradients that set_gradients() has set.
  void clear_gradients();
  /// The shards, of one dimension, with these gradients.
  std::vector<at::Tensor> const& tensors() const { return pieces_; }

  /// Throws error (E11) unless the parameter's memory is dense.
  static void require_dense_memory(at::Tensor const& parameter, std::string const& name);
  /// Rebuilds the shards after the optimizer's groups changed; unchanged parameters keep theirs.
  void parameters_changed();
  /// Allocates the buffers of gather_parameters(). Call before an update, once gradients are set.
  void prepare();
  /// All-gathers the updated shards into the parameters, after an update. Collective.
  void gather_parameters();
  /// Throws interference_error (E19) if the optimizer has state for a full parameter.
  void require_no_full_state() const;

  // `named`: the parameters, with their names in the checkpoint.
  /// Returns what part of the tensor `name` of a checkpoint this rank has if it has the shape of its parameter; nullopt for other tensors.
  std::optional<tensor_slice> slice_of(std::string const& name, parameter_list const& named) const;
  /// The shards of parameters that units gather; null but under zero<3>.
  parameter_shards* of_units() const { return of_units_; }
  /// Replaces full tensors by this rank's shards, for load_optimizer inside a scope; leaves shards as they are. Throws checkpoint_error
  /// (E05) for a tensor whose shape is not its parameter's.
  void cut(tensor_map& tensors, parameter_list const& named, std::string const& source) const;

 private:
  struct parameter_shard {
    at::Tensor parameter;
    at::Tensor piece;  ///< of one dimension
    element_range range;
  };

  /// Byte buffers on one device, kept between updates.
  struct gather_buffers {
    at::Tensor sent, received;
  };

  /// Calls `use(bucket, longest)` for each bucket of parameters that have a gradient. `longest` is the largest number of its elements on a
  /// rank.
  template <class Use>
  void for_each_gathered(Use const& use) const;
  /// The elements of this rank's shard: a view of the parameter, or its shard under zero<3>.
  at::Tensor elements_of(parameter_shard const& one) const;
  /// True if units gather the parameter, so that an update leaves its shards where they are.
  bool is_gathered_by_units(parameter_shard const& one) const;
  bool has_gradient(parameter_shard const& of) const { return (has_own_gradients_ ? of.piece : of.parameter).grad().defined(); }
  element_range range_of(std::size_t index, int rank) const;
  gather_buffers& buffers_on(c10::Device device);
  parameter_shard make_shard(at::Tensor const& parameter, std::size_t index) const;
  void forget(parameter_shard const& one);
  /// Returns the shard of the parameter to which a checkpoint's tensor belongs; null if there is none.
  parameter_shard const* shard_of_tensor(std::string const& name, parameter_list const& named) const;
  static bool is_cut(parameter_shard const& of, at::Tensor const& tensor);
  static at::Tensor copy_own_shard(parameter_shard const& of, at::Tensor const& whole);
  void swap();
  /// Points each shard to the present memory of its parameter.
  void follow_memory();
  void view_gradients();

  world_of_ranks world_;
  torch::optim::Optimizer& optimizer_;
  parameter_list const& parameters_;
  parameter_shards* of_units_;
  std::vector<parameter_shard> shards_;                  ///< in the order of the parameters
  std::vector<at::Tensor> pieces_;                       ///< those of shards_
  bool has_own_gradients_ = false;                       ///< set_gradients() has set gradients of the shards
  std::vector<std::vector<at::Tensor>> swapped_params_;  ///< per group: the pieces, or the parameters during a scope
  std::vector<gather_buffers> device_buffers_;
  int depth_ = 0;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/shard/optimizer_shards.ipp>
#endif
