// Mean and deviation of the last accepted values, to say how unusual the next one is. What enters is the value of an update
// that was applied (N19) and what is asked about was found finite (N03), so one NaN cannot blind it. A deviation counts as at
// least a hundredth of the mean, so that a history that hardly varies does not make a spike of every change, and one that does
// not vary at all is not blind.
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

/// A finite value of an update that was applied.
class accepted_value {
 public:
  double value() const { return value_; }

 private:
  explicit accepted_value(double value) : value_(value) {}
  friend std::optional<accepted_value> accepted(step_outcome const& result, double value);
  double value_;
};

/// The value as one that may enter a reference window; nothing if the step was not applied, or the value is not finite.
inline std::optional<accepted_value> accepted(step_outcome const& result, double value) {
  if (!result.is<result::updated>() || !std::isfinite(value)) return std::nullopt;
  return accepted_value(value);
}

class window_statistics {
 public:
  /// Looks back on `length` values; says nothing before `least` of them are there.
  explicit window_statistics(std::size_t length = 128, std::size_t least = 8) : length_(length), least_(least) {}

  /// Standard deviations from the mean of the window; nothing before there is a history, or where all of it is zero.
  std::optional<double> zscore(finite<double> const& value) const {
    auto const seen = moments();
    if (!seen) return std::nullopt;
    return (value.value() - seen->mean) / seen->deviation;
  }
  /// The mean of the window; nothing before there is a history.
  std::optional<double> mean() const {
    if (values_.size() < least_) return std::nullopt;
    double sum = 0.0;
    for (double const one : values_) sum += one;
    return sum / static_cast<double>(values_.size());
  }
  /// The value that stands `deviations` above the mean; infinity before there is a history, or where all of it is zero.
  double limit(double deviations) const {
    auto const seen = moments();
    return seen ? seen->mean + deviations * seen->deviation : std::numeric_limits<double>::infinity();
  }
  /// Nothing for a value that is not there.
  std::optional<double> zscore(std::optional<finite<double>> const& value) const {
    return value ? zscore(*value) : std::nullopt;
  }

  /// Rejected (N03): a number that was not checked.
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
  /// Rejected (N19): a value that was not accepted.
  template <class Raw>
  void push(Raw const&) {
    detail::reject_call<rule::N19, Raw>();
  }

  template <class Archive>
  void visit(Archive& archive) {
    archive("values", values_);
    archive("next", next_);
    // A damaged position must not become an index outside the window.
    if (next_ >= values_.size()) next_ = 0;
    // Of a recipe with another length: the last values, from the oldest on.
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
