// Iterates over the epochs of a source, from the position of the cursor, one batch at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <keel/core/error.hpp>
#include <keel/data/batch_source.hpp>
#include <keel/data/data_cursor.hpp>
#include <keel/libtorch/random.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

/// One epoch of a source: the range or loader itself, or the range that a function of the epoch returned.
template <class Source>
class open_epoch {
  static auto open(Source& source, std::int64_t epoch, std::int64_t position) {
    if constexpr (positioned_function<Source>) {
      return held<std::invoke_result_t<Source&, std::int64_t, std::int64_t>>{source(epoch, position)};
    } else if constexpr (epoch_function<Source>) {
      return held<std::invoke_result_t<Source&, std::int64_t>>{source(epoch)};
    } else {
      return held<Source&>{source};
    }
  }
  template <class Range>
  struct held {
    Range range;
    auto& get() {
      if constexpr (batch_range<std::remove_reference_t<Range>>) {
        return range;
      } else {
        return *range;
      }
    }
  };
  static auto begin_of(auto& range) {
    if constexpr (ranges::input_range<decltype(range)>) {
      return ranges::begin(range);
    } else {
      return range.begin();
    }
  }
  static auto end_of(auto& range) {
    if constexpr (ranges::input_range<decltype(range)>) {
      return ranges::end(range);
    } else {
      return range.end();
    }
  }
  using held_type = decltype(open(std::declval<Source&>(), 0, 0));
  using range_type = std::remove_reference_t<decltype(std::declval<held_type&>().get())>;

 public:
  open_epoch(Source& source, std::int64_t epoch, std::int64_t position)
      : held_(open(source, epoch, position)), at_(begin_of(held_.get())), end_(end_of(held_.get())) {}
  open_epoch(open_epoch const&) = delete;
  open_epoch& operator=(open_epoch const&) = delete;

  bool has_batch() { return at_ != end_; }
  decltype(auto) batch() { return *at_; }
  void next() { ++at_; }
  std::int64_t skip(std::int64_t count) { return skip_batches(at_, end_, count); }

 private:
  held_type held_;
  decltype(begin_of(std::declval<range_type&>())) at_;
  decltype(end_of(std::declval<range_type&>())) end_;
};

/// Throws data_error (E06) at the end of an epoch in which the cursor has not moved.
inline void require_batches(data_cursor const& cursor) {
  if (cursor.position > 0) return;
  throw data_error(
      "E06", "epoch " + std::to_string(cursor.epoch) + " has no batches. Check the data path and the filters of the data.");
}

/// Iterates from the cursor, which the run advances. Source and cursor must outlive this object.
template <class Source>
class epoch_walker {
 public:
  epoch_walker(Source& source, data_cursor& cursor, at::DeviceType device)
      : source_(source), cursor_(cursor), device_(device) {}

  /// Opens the epoch of the cursor, at its position. Calls `begin(position)` before accessing the source. Throws data_error (E06) if the
  /// epoch has fewer batches than were consumed.
  template <class Begin>
  void open(Begin const& begin) {
    epoch_.reset();
    std::int64_t const consumed = cursor_.position;
    // A loader draws its order in begin(). To redraw it in a resumed epoch, begin() runs with the random state saved at the epoch's
    // beginning; afterwards the current random state (`now`) is restored.
    bool const is_resumed_epoch = cursor_.in_epoch;
    // A source that can start at a position starts at the cursor, with the current random state.
    bool const begins_there = positioned_function<Source> && consumed > 0;
    bool const begins_again = is_resumed_epoch && !begins_there;
    auto const now = random_snapshot::take(device_);
    if (begins_again) cursor_.at_epoch_begin.restore();
    if (!is_resumed_epoch) {
      cursor_.at_epoch_begin = now;
      cursor_.in_epoch = true;
    }
    begin(consumed);
    epoch_.emplace(source_, cursor_.epoch, consumed);
    if (consumed > 0 && !begins_there) {
      // A loader fetches the next batch in operator++, so the last increment runs after the current random state is restored.
      if (epoch_->skip(consumed - 1) < consumed - 1 || !epoch_->has_batch()) {
        throw data_error("E06", "the data of epoch " + std::to_string(cursor_.epoch) + " ends before batch " +
                                    std::to_string(consumed) +
                                    ", where the checkpoint resumes. Use the data of the saved run, or another run directory.");
      }
      static_cast<void>(epoch_->batch());
    }
    if (begins_again) now.restore();
    if (consumed > 0 && !begins_there) epoch_->next();
  }
  // NOLINTBEGIN(bugprone-unchecked-optional-access): open() comes first
  bool has_batch() { return epoch_->has_batch(); }
  decltype(auto) batch() { return epoch_->batch(); }
  void next() { epoch_->next(); }
  // NOLINTEND(bugprone-unchecked-optional-access)
  void close() { epoch_.reset(); }

 private:
  Source& source_;
  data_cursor& cursor_;
  at::DeviceType device_;
  std::optional<open_epoch<Source>> epoch_;
};

}  // namespace keel::detail::inline KEEL_MODE
