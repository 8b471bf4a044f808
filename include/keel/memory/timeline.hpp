// Memory from update to update: the highest peak and where it was, and whether it grows.
//   flat        neither of the two below.
//   staircase   more is held at the end of updates than before, again and again: somebody keeps tensors. A leak.
//   slope       the same is held, but more and more is taken from the system for it: fragmentation.
// On the CPU, what is taken from the system is what is resident in the process, so that a program's own growth is a slope too.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <keel/memory/phase_watch.hpp>

namespace keel::memory {

enum class growth : unsigned char { unknown, flat, staircase, slope };

inline char const* to_string(growth found) {
  switch (found) {
    case growth::unknown:
      return "too few updates to tell";
    case growth::flat:
      return "flat";
    case growth::staircase:
      return "a staircase: tensors are kept from update to update";
    case growth::slope:
      return "a slope: the same takes more and more from the system";
  }
  return "unknown";
}

class timeline {
 public:
  /// Updates that the judgement looks back on.
  static constexpr std::size_t length = 256;

  void add(std::int64_t update, usage const& of) {
    if (of.peak() > peak_) {
      peak_ = of.peak();
      peak_update_ = update;
      peak_phase_ = of.highest();
    }
    recent_.push_back({of.held, of.reserved});
    if (recent_.size() > length) recent_.pop_front();
  }

  /// Bytes; 0 before the first update.
  std::int64_t peak() const { return peak_; }
  std::int64_t peak_update() const { return peak_update_; }
  phase peak_phase() const { return peak_phase_; }

  /// By the least of each of eight stretches of the last updates, so that a peak here and there does not count. Eight numbers
  /// rise by chance in one case of forty thousand.
  growth judge() const {
    if (recent_.size() < 2 * stretches) return growth::unknown;
    if (rises([](sample const& one) { return one.held; }, page)) return growth::staircase;
    std::int64_t const first = recent_.front().reserved;
    if (rises([](sample const& one) { return one.reserved - one.held; }, std::max(page, first / 100))) return growth::slope;
    return growth::flat;
  }

 private:
  static constexpr std::size_t stretches = 8;
  static constexpr std::int64_t page = 4096;
  struct sample {
    std::int64_t held;
    std::int64_t reserved;
  };

  /// Rises from each stretch to the next, and by so much over all of them.
  template <class Value>
  bool rises(Value const& value, std::int64_t at_least) const {
    std::int64_t first = 0;
    std::int64_t before = 0;
    for (std::size_t i = 0; i < stretches; ++i) {
      auto const begin = recent_.begin() + static_cast<std::ptrdiff_t>(i * recent_.size() / stretches);
      auto const end = recent_.begin() + static_cast<std::ptrdiff_t>((i + 1) * recent_.size() / stretches);
      auto const least =
          value(*std::min_element(begin, end, [&](auto const& a, auto const& b) { return value(a) < value(b); }));
      if (i == 0) {
        first = least;
      } else if (least <= before) {
        return false;
      }
      before = least;
    }
    return before - first >= at_least;
  }

  std::int64_t peak_ = 0;
  std::int64_t peak_update_ = 0;
  phase peak_phase_ = phase::forward;
  std::deque<sample> recent_;
};

}  // namespace keel::memory
