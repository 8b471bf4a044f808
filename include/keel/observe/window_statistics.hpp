// Mean and deviation of the last accepted values, to say how unusual the next one is. Only finite values enter, so one NaN
// cannot blind it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace keel {

class window_statistics {
 public:
  /// Looks back on `length` values; says nothing before `least` of them are there.
  explicit window_statistics(std::size_t length = 128, std::size_t least = 8) : length_(length), least_(least) {}

  /// Standard deviations from the mean of the window; nothing for a value that is not finite, or before there is a history.
  std::optional<double> zscore(double value) const {
    if (!std::isfinite(value) || values_.size() < least_) return std::nullopt;
    double sum = 0.0;
    for (double const one : values_) sum += one;
    double const mean = sum / static_cast<double>(values_.size());
    double squares = 0.0;
    for (double const one : values_) squares += (one - mean) * (one - mean);
    double const deviation = std::sqrt(squares / static_cast<double>(values_.size()));
    if (deviation == 0.0) return std::nullopt;
    return (value - mean) / deviation;
  }

  void accept(double value) {
    if (!std::isfinite(value)) return;
    if (values_.size() < length_) {
      values_.push_back(value);
    } else {
      values_[next_] = value;
      next_ = (next_ + 1) % length_;
    }
  }

  template <class Archive>
  void visit(Archive& archive) {
    archive("values", values_);
    archive("next", next_);
    // A damaged position must not become an index outside the window.
    if (next_ >= length_) next_ = 0;
  }

 private:
  std::size_t length_;
  std::size_t least_;
  std::vector<double> values_;
  std::uint64_t next_ = 0;
};

}  // namespace keel
