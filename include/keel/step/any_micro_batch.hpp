// A type-erased micro-batch with its loss function.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <keel/batch_guard/batch_watch.hpp>
#include <keel/checkpoint/archive.hpp>
#include <keel/checkpoint/batch_fields.hpp>
#include <keel/checkpoint/tensor_map.hpp>
#include <keel/core/batch.hpp>
#include <keel/core/loss.hpp>
#include <keel/core/tensor_mark.hpp>
#include <keel/gradients/mixed_dtypes.hpp>
#include <keel/oom/cut_batch.hpp>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

class any_micro_batch {
 public:
  virtual ~any_micro_batch() = default;
  any_micro_batch(any_micro_batch const&) = delete;
  any_micro_batch& operator=(any_micro_batch const&) = delete;

  virtual std::int64_t rows() const = 0;
  virtual std::int64_t tokens() const = 0;
  /// Number of rows that a split keeps together: each piece has a multiple of this many rows. 0: the batch cannot be split.
  virtual std::int64_t granularity() const = 0;
  virtual weighted_loss loss_of() = 0;
  /// Returns rows [begin, end), each truncated to `length` tokens (0: not truncated); null if nothing is cut, so that the caller uses the
  /// batch itself. The result refers to this object, which must outlive it.
  virtual std::unique_ptr<any_micro_batch> slice(std::int64_t begin, std::int64_t end, std::int64_t length) = 0;
  virtual batch_contents contents() const = 0;
  /// The dtype of its first floating-point tensor whose dtype is not `dtype`; nullopt if there is none.
  virtual std::optional<at::ScalarType> floating_dtype_other_than(at::ScalarType dtype) const = 0;
  /// Writes the batch; false if its type cannot be written.
  virtual bool write(nlohmann::json& values, tensor_map& tensors, std::string const& prefix) = 0;
  /// Copies the batch and the loss function, for retries and traces; null if they cannot be copied. Shares the batch's tensors.
  virtual std::unique_ptr<any_micro_batch> copy() const = 0;

  /// Maximum number of pieces that it can be split into.
  std::int64_t max_pieces() const {
    return granularity() > 0 ? std::max<std::int64_t>(1, rows() / granularity()) : std::int64_t{1};
  }
  /// True if its tensors were written to since mark().
  bool was_changed() const;

  /// Records the current state of its tensors, for was_changed().
  void mark();

 protected:
  any_micro_batch() = default;

 private:
  std::vector<tensor_mark> marks_;
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// `Batch` and `LossOf` are values, or references that must outlive this object. `IsCopyable`: if false, copy() returns null and write()
/// returns false.
template <class Batch, class LossOf, bool IsCopyable = true>
class typed_micro_batch final : public any_micro_batch {
  using batch_type = std::remove_cvref_t<Batch>;

 public:
  template <class BatchArg, class LossArg>
  typed_micro_batch(BatchArg&& batch, LossArg& loss_of, std::int64_t granularity)
      : batch_(std::forward<BatchArg>(batch)), loss_of_(loss_of), granularity_(granularity) {}

  std::int64_t rows() const override { return batch_traits<batch_type>::rows(batch_); }
  std::int64_t tokens() const override { return batch_traits<batch_type>::tokens(batch_); }
  std::int64_t granularity() const override { return sliceable_batch<batch_type> ? granularity_ : 0; }
  weighted_loss loss_of() override { return as_weighted_loss(loss_of_(batch_), rows()); }
  std::unique_ptr<any_micro_batch> slice(std::int64_t begin, std::int64_t end, std::int64_t length) override {
    if constexpr (shortenable_batch<batch_type>) {
      if (length > 0) {
        auto shorter = make_typed(shortened(batch_, length));
        auto rest = shorter->slice(begin, end, 0);
        return rest ? std::move(rest) : std::move(shorter);
      }
    }
    if constexpr (sliceable_batch<batch_type>) {
      if (begin != 0 || end != rows()) return make_typed(batch_traits<batch_type>::slice(batch_, begin, end));
    }
    return nullptr;
  }
  batch_contents contents() const override { return contents_of(batch_); }
  std::optional<at::ScalarType> floating_dtype_other_than(at::ScalarType dtype) const override {
    return detail::floating_dtype_other_than(batch_, dtype);
  }
  bool write([[maybe_unused]] nlohmann::json& values, [[maybe_unused]] tensor_map& tensors,
             [[maybe_unused]] std::string const& prefix) override {
    if constexpr (IsCopyable && writable_batch<batch_type>) {
      // This copy is cheap: it copies tensor handles, and shares their data.
      batch_type copy = batch_;
      state_writer archive(values, tensors, prefix);
      fields_of_batch(archive, "batch", copy);
      return true;
    } else {
      return false;
    }
  }
  std::unique_ptr<any_micro_batch> copy() const override {
    // A function decays to a pointer.
    using function = std::decay_t<LossOf>;
    if constexpr (IsCopyable && std::copy_constructible<batch_type> && std::copy_constructible<function>) {
      auto made = std::make_unique<typed_micro_batch<batch_type, function>>(batch_, loss_of_, granularity_);
      made->mark();
      return made;
    } else {
      return nullptr;
    }
  }

 private:
  std::unique_ptr<any_micro_batch> make_typed(batch_type&& batch) {
    return std::make_unique<typed_micro_batch<batch_type, std::remove_reference_t<LossOf>&, false>>(std::move(batch), loss_of_,
                                                                                                    granularity_);
  }

  std::conditional_t<std::is_reference_v<Batch>, batch_type const&, batch_type> batch_;
  LossOf loss_of_;
  std::int64_t granularity_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/any_micro_batch.ipp>
#endif
