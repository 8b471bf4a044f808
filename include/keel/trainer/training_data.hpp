// The batches and loss function of a call of fit(), type-erased for the loop.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <keel/core/outcome.hpp>
#include <keel/data/batch_source.hpp>
#include <keel/data/data_cursor.hpp>
#include <keel/trainer/epoch.hpp>
#include <keel/trainer/epoch_walker.hpp>

namespace keel::detail::inline KEEL_MODE {

class training_data {
 public:
  training_data() = default;
  training_data(training_data const&) = delete;
  training_data& operator=(training_data const&) = delete;
  virtual ~training_data() = default;

  /// False for a single-pass range.
  virtual bool is_repeatable() const = 0;
  /// Same as keel::detail::epoch_length.
  virtual std::int64_t epoch_length(std::int64_t given, bool is_single_rank) = 0;
  /// Same as keel::detail::adopt_source_order.
  virtual void adopt_data_order(bool is_single_rank, bool accept_another) = 0;
  // Same as epoch_walker.
  virtual void open(c10::function_ref<void(std::int64_t position)> begin) = 0;
  virtual bool has_batch() = 0;
  virtual void next() = 0;
  virtual void close() = 0;
  /// Trains on the current batch.
  virtual step_outcome train() = 0;
};

/// `Train` is called with each batch. All arguments must outlive this object.
template <class Source, class Train>
class training_data_of final : public training_data {
 public:
  training_data_of(Source& source, data_cursor& cursor, at::DeviceType device, Train const& train)
      : source_(source), cursor_(cursor), walk_(source, cursor, device), train_(train) {}
  bool is_repeatable() const override { return detail::is_repeatable<Source>; }
  std::int64_t epoch_length(std::int64_t given, bool is_single_rank) override {
    return detail::epoch_length(source_, given, is_single_rank);
  }
  void adopt_data_order(bool is_single_rank, bool accept_another) override {
    adopt_source_order(cursor_, source_, is_single_rank, accept_another);
  }
  void open(c10::function_ref<void(std::int64_t)> begin) override { walk_.open(begin); }
  bool has_batch() override { return walk_.has_batch(); }
  void next() override { walk_.next(); }
  void close() override { walk_.close(); }
  step_outcome train() override { return train_(walk_.batch()); }

 private:
  Source& source_;
  data_cursor& cursor_;
  epoch_walker<Source> walk_;
  Train const& train_;
};

}  // namespace keel::detail::inline KEEL_MODE
