// Shared by the engines: decides which tensors the vector kernels can process as plain memory, stores optimizer state, and
// keeps fp32 copies of narrower parameters.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <keel/core/error.hpp>
#include <keel/libtorch/compatibility.hpp>
#include <keel/optimizer/chunks.hpp>
#include <keel/optimizer/operands.hpp>
#include <keel/optimizer/state_storage.hpp>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

inline bool is_narrow(at::Tensor const& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

/// True if all tensors have this type, are dense, and have the device and memory order of `first`.
bool are_plain_memory(at::Tensor const& first, at::ScalarType type, std::initializer_list<at::Tensor const*> tensors);

/// True if the vector kernels can process the parameter, its gradient, `worked` and the state.
bool are_swept(at::Tensor const& parameter, at::Tensor const& worked, std::initializer_list<at::Tensor const*> state);

operands operands_of(at::Tensor const& parameter, at::Tensor const& worked);

/// Computes average + weight (parameter - average) in place, for an fp32 average of a bf16 or fp16 parameter, both plain
/// memory. Allocates nothing.
void lerp_narrow(at::Tensor const& average, at::Tensor const& parameter, float weight);

/// True at the first occurrence of a parameter in a pass over an optimizer's groups. Groups made of model->parameters() list a
/// parameter shared by two modules twice, and two threads would update it.
class each_once {
 public:
  bool operator()(at::Tensor const& parameter) { return seen_.insert(parameter.unsafeGetTensorImpl()).second; }

 private:
  std::unordered_set<c10::TensorImpl const*> seen_;
};

void refuse_sparse(at::Tensor const& gradient);

/// Where state is stored: on the device of its parameters, or in a separate storage.
class state_place {
 public:
  /// `move_all(moved)` must replace each state tensor by `moved(tensor, parameter)`. `home`: null moves the state back to the
  /// parameters' devices.
  template <class MoveAll>
  void change_to(std::shared_ptr<state_storage> home, MoveAll const& move_all) {
    if (home == nullptr) {
      move_all([this](at::Tensor const& tensor, at::Tensor const& parameter) { return brought_out(tensor, parameter); });
      home_ = nullptr;
    } else {
      home_ = std::move(home);
      move_all([this](at::Tensor const& tensor, at::Tensor const&) { return settled(tensor); });
    }
  }
  /// Calls `work(index, piece)` for every piece. With a separate storage the pieces are processed in groups: during one group
  /// the next are read and the previous one is written. `for_each_state(piece, visit)` must visit the fp32 tensors of a piece.
  template <class Work, class ForEachState>
  void sweep(chunk_list const& chunks, Work const& work, ForEachState const& for_each_state) const {
    if (home_ == nullptr) return chunks.for_each(work);
    sweep_scope const scope(*home_);
    auto const apply = [&](void (state_storage::*call)(at::Tensor const&, std::int64_t, std::int64_t), std::size_t index) {
      if (index >= chunks.size()) return;
      chunk const& piece = chunks[index];
      std::int64_t const begin = piece.begin * bytes_of_fp32;
      std::int64_t const end = begin + piece.count * bytes_of_fp32;
      for_each_state(piece, [&](at::Tensor const& tensor) {
        if (tensor.defined()) (*home_.*call)(tensor, begin, end);
      });
    };
    // A group has as many pieces as there are threads.
    auto const width = static_cast<std::size_t>(at::get_num_threads());
    auto const apply_to_group = [&](auto call, std::size_t first) {
      for (std::size_t i = first; i < first + width; ++i) apply(call, i);
    };
    for (std::size_t i = 0; i < read_ahead * width; ++i) apply(&state_storage::prefetch, i);
    for (std::size_t first = 0; first < chunks.size(); first += width) {
      apply_to_group(&state_storage::prefetch, first + read_ahead * width);
      chunks.for_each(first, std::min(chunks.size(), first + width), work);
      apply_to_group(&state_storage::write_back, first);
      if (first > 0) apply_to_group(&state_storage::release, first - width);
    }
    if (chunks.size() > 0) apply_to_group(&state_storage::release, (chunks.size() - 1) / width * width);
  }

  at::Tensor zeros(at::Tensor const& like) const;
  /// Moves the tensor into the storage unless it is there already. An undefined tensor is returned unchanged.
  at::Tensor settled(at::Tensor const& tensor) const {
    return home_ == nullptr || !tensor.defined() || home_->holds(tensor) ? tensor : home_->move_in(tensor);
  }
  void release(at::Tensor const& tensor) const {
    if (home_ != nullptr && tensor.defined()) home_->release(tensor, 0, static_cast<std::int64_t>(tensor.nbytes()));
  }

 private:
  static constexpr std::int64_t bytes_of_fp32 = sizeof(float);
  /// Number of groups to read ahead. With the group in work and the one being written, 1 MiB of Adam's moments per thread is in
  /// memory.
  static constexpr std::size_t read_ahead = 2;

  struct sweep_scope {
    state_storage& home;
    explicit sweep_scope(state_storage& of) : home(of) { home.begin_sweep(); }
    sweep_scope(sweep_scope const&) = delete;
    sweep_scope& operator=(sweep_scope const&) = delete;
    ~sweep_scope() { home.end_sweep(); }
  };

  /// Copies the tensor from the storage to the parameter's device.
  at::Tensor brought_out(at::Tensor const& tensor, at::Tensor const& parameter) const {
    bool const inside = home_ != nullptr && tensor.defined() && home_->holds(tensor);
    return inside ? tensor.to(parameter.device(), tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true) : tensor;
  }

  std::shared_ptr<state_storage> home_;
};

/// Returns the tensor on the device of `like`, where operators work on it.
inline at::Tensor beside(at::Tensor const& like, at::Tensor const& tensor) {
  return tensor.defined() && tensor.device() != like.device() ? tensor.to(like.device()) : tensor;
}
/// Copies the result of operators back to the storage.
inline void return_to(at::Tensor const& home, at::Tensor const& used) {
  if (home.defined() && !used.is_same(home)) home.copy_(used);
}

/// fp32 copies of bf16 and fp16 parameters, because eight bits lose an update of one part in a thousand. Values that the
/// program writes into a parameter are copied to its master before the next update. Writes through a raw pointer or `.data()`
/// are not detected.
class master_weights {
 public:
  /// Creates a missing copy of a narrow parameter, and refreshes the copy if something else changed the parameter.
  void prepare(at::Tensor const& parameter, state_place const& place);
  /// Call after the copy was rounded into the parameter.
  void updated(at::Tensor const& parameter) {
    if (is_narrow(parameter)) remember(parameter, masters_.at(parameter.unsafeGetTensorImpl()));
  }
  /// Replaces the copy by `moved(copy, parameter)`.
  template <class Moved>
  void move(at::Tensor const& parameter, Moved const& moved) {
    auto const found = masters_.find(parameter.unsafeGetTensorImpl());
    if (found != masters_.end()) found->second.master = moved(found->second.master, parameter);
  }
  /// Returns the tensor to update: the copy of a narrow parameter, or the parameter itself.
  at::Tensor const& of(at::Tensor const& parameter) const {
    return is_narrow(parameter) ? masters_.at(parameter.unsafeGetTensorImpl()).master : parameter;
  }
  /// Returns the copy for a checkpoint; undefined if there is none.
  at::Tensor saved(at::Tensor const& parameter) const {
    auto const found = masters_.find(parameter.unsafeGetTensorImpl());
    return found == masters_.end() ? at::Tensor() : found->second.master;
  }
  /// Sets a loaded copy; the parameter itself may be loaded later.
  void put(at::Tensor const& parameter, at::Tensor master) {
    masters_[parameter.unsafeGetTensorImpl()] = {std::move(master), nullptr, 0};
  }

 private:
  struct entry {
    at::Tensor master;
    void const* data = nullptr;  ///< memory of the parameter when it was last written from the copy
    std::int64_t version = 0;
  };

  static void remember(at::Tensor const& parameter, entry& of) {
    of.version = parameter._version();
    of.data = parameter.data_ptr();
  }
  /// Copies only elements that differ; the others keep the digits that the parameter cannot represent.
  static void take_over(at::Tensor const& parameter, at::Tensor const& master);

  std::unordered_map<c10::TensorImpl const*, entry> masters_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/optimizer/parameter_state.ipp>
#endif
