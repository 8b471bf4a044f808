// Splits a set of tensors into equal pieces, so that threads share the work evenly for one large tensor or a thousand small
// ones. The pieces do not depend on the number of threads.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// Elements per piece: 128 KiB of fp32, which stays in a core's cache between passes.
inline constexpr std::int64_t chunk_elements = 32768;

struct chunk {
  std::size_t tensor;
  std::int64_t begin;
  std::int64_t count;
};

class chunk_list {
 public:
  void clear() { chunks_.clear(); }
  void add(std::size_t tensor, std::int64_t elements) {
    for (std::int64_t begin = 0; begin < elements; begin += chunk_elements) {
      chunks_.push_back({tensor, begin, std::min(chunk_elements, elements - begin)});
    }
  }
  std::size_t size() const { return chunks_.size(); }
  chunk const& operator[](std::size_t index) const { return chunks_[index]; }

  /// Calls `work(index, chunk)` for every piece, in parallel on LibTorch's threads.
  template <class Work>
  void for_each(Work const& work) const {
    for_each(0, chunks_.size(), work);
  }
  /// The same for the pieces in [first, last).
  template <class Work>
  void for_each(std::size_t first, std::size_t last, Work const& work) const {
    at::parallel_for(static_cast<std::int64_t>(first), static_cast<std::int64_t>(last), 1,
                     [&](std::int64_t from, std::int64_t to) {
                       for (std::int64_t i = from; i < to; ++i)
                         work(static_cast<std::size_t>(i), chunks_[static_cast<std::size_t>(i)]);
                     });
  }

 private:
  std::vector<chunk> chunks_;
};

}  // namespace keel::detail::inline KEEL_MODE
