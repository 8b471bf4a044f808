// A micro-batch that a step took, with its loss function: what an update that runs again needs, whatever the types of both.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <keel/batch_guard/batch_watch.hpp>
#include <keel/checkpoint/archive.hpp>
#include <keel/checkpoint/batch_fields.hpp>
#include <keel/checkpoint/tensor_map.hpp>
#include <keel/core/batch.hpp>
#include <keel/core/loss.hpp>
#include <keel/core/tensor_mark.hpp>
#include <keel/oom/cut_batch.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

class taken_batch {
 public:
  virtual ~taken_batch() = default;
  taken_batch(taken_batch const&) = delete;
  taken_batch& operator=(taken_batch const&) = delete;

  virtual std::int64_t rows() const = 0;
  /// Rows that no cut may part; 0: it cannot be cut at all.
  virtual std::int64_t granularity() const = 0;
  /// Of the rows from `begin` to before `end`; `length`: shortened to so many tokens, 0: not shortened.
  virtual weighted_loss loss_of(std::int64_t begin, std::int64_t end, std::int64_t length) = 0;
  virtual batch_contents contents() const = 0;
  /// False where its type does not say how it is written.
  virtual bool write(nlohmann::json& values, tensor_map& tensors, std::string const& prefix) = 0;

  /// Its tensors were written to since it was taken.
  bool was_changed() const;

 protected:
  taken_batch() = default;
  void mark();

 private:
  std::vector<tensor_mark> marks_;
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// `Batch` and `LossOf` are values, or references that live as long.
template <class Batch, class LossOf>
class taken_batch_of final : public taken_batch {
  using batch_type = std::remove_cvref_t<Batch>;

 public:
  template <class Given>
  taken_batch_of(batch_type const& batch, Given& loss_of, std::int64_t granularity)
      : batch_(batch), loss_of_(loss_of), granularity_(granularity) {
    if constexpr (!std::is_reference_v<Batch>) mark();
  }

  std::int64_t rows() const override { return batch_traits<batch_type>::rows(batch_); }
  std::int64_t granularity() const override { return sliceable_batch<batch_type> ? granularity_ : 0; }
  weighted_loss loss_of(std::int64_t begin, std::int64_t end, std::int64_t length) override {
    if constexpr (shortenable_batch<batch_type>) {
      if (length > 0) return loss_of_rows(shortened(batch_, length), begin, end);
    }
    return loss_of_rows(batch_, begin, end);
  }
  batch_contents contents() const override { return contents_of(batch_); }
  bool write([[maybe_unused]] nlohmann::json& values, [[maybe_unused]] tensor_map& tensors,
             [[maybe_unused]] std::string const& prefix) override {
    if constexpr (writable_batch<batch_type>) {
      // A tensor's handle is not a copy of what it holds.
      batch_type copy = batch_;
      state_writer archive(values, tensors, prefix);
      fields_of_batch(archive, "batch", copy);
      return true;
    } else {
      return false;
    }
  }

 private:
  weighted_loss loss_of_rows(batch_type const& batch, std::int64_t begin, std::int64_t end) {
    if constexpr (sliceable_batch<batch_type>) {
      if (begin != 0 || end != rows())
        return as_weighted_loss(loss_of_(batch_traits<batch_type>::slice(batch, begin, end)), end - begin);
    }
    return as_weighted_loss(loss_of_(batch), end - begin);
  }

  std::conditional_t<std::is_reference_v<Batch>, batch_type const&, batch_type> batch_;
  LossOf loss_of_;
  std::int64_t granularity_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/taken_batch.ipp>
#endif
