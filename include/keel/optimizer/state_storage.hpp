// Storage for an optimizer's state other than its parameters' devices: another device, or a file.
#pragma once

#include <ATen/core/Tensor.h>

#include <keel/libtorch/mode.hpp>
#include <span>

namespace keel::inline KEEL_MODE {

class state_storage {
 public:
  virtual ~state_storage() = default;

  /// Returns a copy with the same values, dtype and memory order in this storage. Temporarily needs at most the tensor's size
  /// in memory.
  virtual at::Tensor move_in(at::Tensor const& tensor) = 0;
  /// Returns zeros with the shape and memory order of `like`, in this storage.
  virtual at::Tensor zeros(at::Tensor const& like, at::ScalarType type) = 0;
  /// True if the tensor is already in this storage.
  virtual bool holds(at::Tensor const& tensor) const = 0;

  /// Begins an update, which lasts until end_sweep() and processes all tensors in order, piece by piece. The calls below are
  /// for one piece: the bytes `begin` to `end` of a tensor.
  virtual void begin_sweep() {}
  virtual void end_sweep() {}
  /// Starts reading a piece that is needed next.
  virtual void prefetch(at::Tensor const& /*tensor*/, std::int64_t /*begin*/, std::int64_t /*end*/) {}
  /// Starts writing a piece that has its new values.
  virtual void write_back(at::Tensor const& /*tensor*/, std::int64_t /*begin*/, std::int64_t /*end*/) {}
  /// Waits until a piece is written and frees its memory; the next update is the first to need it again.
  virtual void release(at::Tensor const& tensor, std::int64_t begin, std::int64_t end) = 0;

 protected:
  state_storage() = default;
  state_storage(state_storage const&) = default;
  state_storage& operator=(state_storage const&) = default;
};

}  // namespace keel::inline KEEL_MODE
