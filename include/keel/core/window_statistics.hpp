// Mean and standard deviation of the last accepted values, to judge how unusual the next one is. Only values of applied updates enter
// (N19), and only finite values are judged (N03), so that a NaN cannot disable it. The standard deviation is floored at 1 % of the mean, so
// that a nearly constant history does not flag every change, and a constant one still flags outliers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <keel/core/finite.hpp>
#include <keel/core/outcome.hpp>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

namespace keel::inline KEEL_MODE {

/// A finite value of an applied update.
class accepted_value {
 public:
  double value() const { return value_; }

 private:
  explicit accepted_value(double value) : value_(value) {}
  friend std::optional<accepted_value> accepted(step_outcome const& result, double value);
  double value_;
};

/// Returns the value if it may enter the window; nullopt if the update was not applied, or if the value is not finite.
inline std::optional<accepted_value> accepted(step_outcome const& result, double value) {
  if (!result.is<result::updated>() || !std::isfinite(value)) return std::nullopt;
  return accepted_value(value);
}

class window_statistics {
 public:
  /// Holds the last `length` values; judges nothing until it has `least` of them.
  explicit window_statistics(std::size_t length = 128, std::size_t least = 8) : length_(length), least_(least) {}

  /// Returns the distance from the window's mean in standard deviations; nullopt without a history, or if all its values are zero.
  std::optional<double> zscore(finite<double> const& value) const {
    auto const seen = moments();
    if (!seen) return std::nullopt;
    return (value.value() - seen->mean) / seen->deviation;
  }
  /// Returns the mean of the window; nullopt without a history.
  std::optional<double> mean() const {
    if (values_.size() < least_) return std::nullopt;
    double sum = 0.0;
    for (double const one : values_) sum += one;
    return sum / static_cast<double>(values_.size());
  }
  /// Returns the value that is `deviations` above the mean; infinity without a history, or if all its values are zero.
  double limit(double deviations) const {
    auto const seen = moments();
    return seen ? seen->mean + deviations * seen->deviation : std::numeric_limits<double>::infinity();
  }
  /// Returns nullopt if there is no value.
  std::optional<double> zscore(std::optional<finite<double>> const& value) const {
    return value ? zscore(*value) : std::nullopt;
  }

  /// Does not compile (N03): a raw number must be checked with as_finite first.
  template <class Raw>
    requires std::is_arithmetic_v<Raw>
  std::optional<double> zscore(Raw const&) const {
    detail::reject_call<rule::N03, Raw>();
    return std::nullopt;
  }

  void push(accepted_value const& accepted) {
    if (values_.size() < length_) {
      values_.push_back(accepted.value());
    } else {
      values_[next_] = accepted.value();
      next_ = (next_ + 1) % length_;
    }
  }
  void push(std::optional<accepted_value> const& accepted) {
    if (accepted) push(*accepted);
  }
  /// Does not compile (N19): only accepted values may enter.
  template <class Raw>
  void push(Raw const&) {
    detail::reject_call<rule::N19, Raw>();
  }

  template <class Archive>
  void visit(Archive& archive) {
    archive("values", values_);
    archive("next", next_);
    // A damaged position must not become an index beyond the window.
    if (next_ >= values_.size()) next_ = 0;
    // For a window of another length: keeps the last values, from the oldest on.
    if (values_.size() > length_ || (values_.size() < length_ && next_ != 0)) {
      std::rotate(values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(next_), values_.end());
      if (values_.size() > length_) values_.erase(values_.begin(), values_.end() - static_cast<std::ptrdiff_t>(length_));
      next_ = 0;
    }
  }

 private:
  struct mean_and_deviation {
    double mean;
    double deviation;  ///< above zero
  };
  std::optional<mean_and_deviation> moments() const {
    auto const center = mean();
    if (!center) return std::nullopt;
    double squares = 0.0;
    for (double const one : values_) squares += (one - *center) * (one - *center);
    constexpr double least_share = 0.01;
    double const deviation =
        std::max(std::sqrt(squares / static_cast<double>(values_.size())), least_share * std::abs(*center));
    if (deviation == 0.0) return std::nullopt;
    return mean_and_deviation{*center, deviation};
  }

  std::size_t length_;
  std::size_t least_;
  std::vector<double> values_;
  std::uint64_t next_ = 0;
};

}  // namespace keel::inline KEEL_MODE
