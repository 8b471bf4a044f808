// shard::zero<1>: of every parameter each rank has a share, and of the optimizer's state only what belongs to its shares (Rajbhandari et al.
// 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", the stage Pos). A rank updates its shares, and gets the
// others' from their ranks. Parameters and gradients are whole on all ranks, so that norms, clipping, averages and evaluations are those of
// shard::replicate, and an optimizer that works on each element by itself comes to the same bits.
// The optimizer has its own parameters at all times but inside of an update, where views of the shares take their places.
// Left out: state that is whole on one rank and absent on another, which cuts nothing where one parameter is most of a model.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <keel/checkpoint/tensor_map.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/core/parameters.hpp>
#include <string>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// Elements of a tensor in the order in which they lie in memory.
struct element_range {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

/// The share of a rank in the `index`-th parameter, of so many elements. Shares end at whole cache lines, so that vector loops round every
/// element as they do in the whole, and which rank gets what does not come out even changes from parameter to parameter.
element_range compute_shard_range(std::int64_t elements, std::size_t index, int rank, int size);

class optimizer_shards {
 public:
  /// Of several ranks. State that the optimizer has is cut; all of them outlive this. Throws error (E11) for a parameter that does not lie
  /// in memory without holes, and for state of another step's shares; S05 for state that keel does not know.
  optimizer_shards(world_of_ranks world, torch::optim::Optimizer& optimizer, parameter_list const& parameters);
  optimizer_shards(optimizer_shards const&) = delete;
  optimizer_shards& operator=(optimizer_shards const&) = delete;
  /// The state of shares goes with them: a share is of no use without the others.
  ~optimizer_shards();

  /// While it lives the optimizer has the shares in the places of its parameters. Without shares it does nothing.
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

  /// Throws error (E11) for a parameter that does not lie in memory without holes.
  static void require_dense_memory(at::Tensor const& parameter, std::string const& name);
  /// The optimizer has other groups now.
  void parameters_changed();
  /// Before an update of parameters that have their gradients: allocates what gathering them needs.
  void prepare();
  /// All ranks, after an update: each gets the shares of the others.
  void gather_parameters();
  /// Throws interference_error (E19) where the optimizer has made state of whole parameters.
  void require_no_full_state() const;

  // Checkpoints, whose tensors are whole. `named`: the parameters, by the names that the checkpoint has for them.
  /// All ranks: each tensor that save_optimizer found inside becomes whole, in host memory, on the rank that `rank_for(bytes)` gives, which
  /// finds the same on all of them, and goes on the others. Throws world_error (E26) where they found other tensors.
  void gather_full_tensors(tensor_map& tensors, parameter_list const& named,
                           std::function<int(std::uint64_t)> const& rank_for) const;
  /// What load_optimizer is to find inside; what is cut already stays. Throws checkpoint_error (E05) for a tensor of another shape than its
  /// parameter's.
  void cut(tensor_map& tensors, parameter_list const& named, std::string const& source) const;
  /// Of one tensor of a checkpoint, before anything is known of the others: one that cut() would not take stays as it is.
  void shard_if_full(std::string const& name, at::Tensor& tensor, parameter_list const& named) const;

 private:
  struct parameter_shard {
    at::Tensor parameter;
    at::Tensor piece;  ///< a view of the parameter's memory, of one dimension
    element_range range;
  };

  /// Bytes of a device, from update to update.
  struct gather_buffers {
    at::Tensor sent, received;
  };

  /// Calls `use(bucket, longest)` for the parameters that have a gradient, where no rank has more than `longest` elements of a bucket.
  template <class Use>
  void for_each_gathered(Use const& use) const;
  element_range range_of(std::size_t index, int rank) const;
  gather_buffers& buffers_on(c10::Device device);
  parameter_shard make_shard(at::Tensor const& parameter, std::size_t index) const;
  void forget(parameter_shard const& one);
  /// Of the parameter that a tensor of a checkpoint belongs to; null: of none.
  parameter_shard const* shard_of_tensor(std::string const& name, parameter_list const& named) const;
  static std::uint64_t full_bytes(parameter_shard const& of, at::Tensor const& piece);
  /// All ranks, one in a row each, filled up to the longest.
  at::Tensor all_gather_pieces(parameter_shard const& of, at::Tensor const& piece) const;
  at::Tensor assemble_full(parameter_shard const& of, at::Tensor const& pieces) const;
  static bool is_cut(parameter_shard const& of, at::Tensor const& tensor);
  static at::Tensor copy_own_shard(parameter_shard const& of, at::Tensor const& whole);
  void swap();
  void set_gradients();

  world_of_ranks world_;
  torch::optim::Optimizer& optimizer_;
  parameter_list const& parameters_;
  std::vector<parameter_shard> shards_;                  ///< in the order of the parameters
  std::vector<std::vector<at::Tensor>> swapped_params_;  ///< a group: the pieces, or the parameters while they are inside
  std::vector<gather_buffers> device_buffers_;
  int depth_ = 0;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/shard/optimizer_shards.ipp>
#endif
