// Where an optimizer's state lives if not beside its parameters: on another device, or in a file.
#pragma once

#include <ATen/core/Tensor.h>

#include <keel/libtorch/mode.hpp>
#include <span>

namespace keel::inline KEEL_MODE {

class state_storage {
 public:
  virtual ~state_storage() = default;

  /// A tensor of the same values, dtype and order in memory that lives here. What it costs beside that is its size at most.
  virtual at::Tensor move_in(at::Tensor const& tensor) = 0;
  /// Zeros, in the shape and order in memory of `like`.
  virtual at::Tensor zeros(at::Tensor const& like, at::ScalarType type) = 0;
  /// True if the tensor lives here already.
  virtual bool holds(at::Tensor const& tensor) const = 0;

  /// An update takes all tensors in order, piece by piece, between these two. Of each piece, bytes `begin` to `end` of a tensor:
  virtual void begin_sweep() {}
  virtual void end_sweep() {}
  /// It is needed next: starts reading it.
  virtual void prefetch(at::Tensor const& /*tensor*/, std::int64_t /*begin*/, std::int64_t /*end*/) {}
  /// It has its new values: starts writing it.
  virtual void write_back(at::Tensor const& /*tensor*/, std::int64_t /*begin*/, std::int64_t /*end*/) {}
  /// The next update is the first to need it again: waits until it is written, and frees its memory.
  virtual void release(at::Tensor const& tensor, std::int64_t begin, std::int64_t end) = 0;

 protected:
  state_storage() = default;
  state_storage(state_storage const&) = default;
  state_storage& operator=(state_storage const&) = default;
};

}  // namespace keel::inline KEEL_MODE
