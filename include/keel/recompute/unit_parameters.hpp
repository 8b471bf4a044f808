// Parameters that exist only while their unit computes, such as those that shard::zero<3> gathers. keel::unit finds them by its module.
// Freeing such a parameter keeps its tensor, shape and graph: only its memory is gone. Any operation of LibTorch on it outside of its unit
// throws error (E12) with its name, because a dispatch key of the tensor leads there. Code that takes its address gets null, and torch::save
// writes no elements of it.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <keel/libtorch/mode.hpp>
#include <memory>
#include <string>

namespace keel::inline KEEL_MODE {
class saved_tensor_scope;
}

namespace keel::detail::inline KEEL_MODE {

/// A call of a unit. Its parameters are present from begin_forward() on.
class unit_call {
 public:
  virtual ~unit_call() = default;
  /// Call before the forward pass, and before each recomputation of it, which the result must outlive.
  virtual std::unique_ptr<saved_tensor_scope> begin_forward() = 0;
  /// Call after the first forward pass. `output`: undefined if it threw.
  virtual void end_forward(at::Tensor const& output) = 0;
  /// True for a view of one of its parameters.
  virtual bool owns(at::Tensor const& tensor) const = 0;
};

/// This rank's shard of a freed parameter that no provider has. The parameter's storage owns it.
struct kept_shard {
  at::Tensor values;      ///< of one dimension
  void const* unit;       ///< the module whose calls need the parameter
  std::size_t index = 0;  ///< of its shard_range
  int rank = 0, ranks = 1;
};

/// Provides the parameters of the modules that it was registered for.
class unit_parameters {
 public:
  virtual ~unit_parameters() = default;
  virtual std::shared_ptr<unit_call> call(void const* module) = 0;
  /// Makes a freed parameter present again for a backward pass.
  virtual void restore(c10::StorageImpl const* memory) = 0;

  /// Returns the provider of a module's parameters; null if there is none.
  static std::shared_ptr<unit_parameters> of_module(void const* module);
  static void add_module(void const* module, std::weak_ptr<unit_parameters> const& provider);
  /// Does nothing if another provider has the module.
  static void remove_module(void const* module, unit_parameters const* provider);

  /// Frees the memory of a parameter, which must own all of its storage. `unit`: the unit that restores it.
  static void free_memory(at::Tensor const& parameter, std::string const& name, std::string const& unit,
                          std::weak_ptr<unit_parameters> const& provider);
  /// Gives a freed parameter memory of its size.
  static void set_memory(at::Tensor const& parameter, c10::DataPtr memory);
  /// Stores a shard with a freed parameter that loses its provider, until it gets memory or is freed by another one. Does not allocate.
  static void keep_shard(at::Tensor const& parameter, std::unique_ptr<kept_shard> shard) noexcept;
  /// Returns the shard that is stored with a parameter; null if there is none.
  static kept_shard const* kept_shard_of(at::Tensor const& parameter);
  static bool is_freed(at::Tensor const& parameter);
  /// Call before reading a tensor that autograd saved: if it is a view of a freed parameter, its provider restores that. Throws error (E12)
  /// if the provider no longer exists.
  static void require_memory(at::Tensor const& saved);
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/recompute/unit_parameters.ipp>
#endif
