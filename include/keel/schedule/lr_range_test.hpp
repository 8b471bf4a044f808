// The learning-rate range test: trainer::lr_range_test trains at rates from low to high and reports how the loss responds.
// Smith 2017, "Cyclical Learning Rates for Training Neural Networks".
#pragma once

#include <cmath>
#include <cstdint>
#include <keel/core/error.hpp>
#include <keel/core/outcome.hpp>
#include <limits>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Rates and length of a learning-rate range test.
struct lr_range_options {
  double lowest = 1e-7;        ///< learning rate of the first parameter group; the others keep their ratio to it
  double highest = 1.0;        ///< learning rate, at the last update
  std::int64_t updates = 100;  ///< number of updates; the rate grows by a constant factor per update
  double smoothing = 0.9;      ///< coefficient of the losses' moving average, in [0, 1)
  double stop_at = 4.0;        ///< the test ends when the smoothed loss is this many times its lowest
};

/// The response of the loss to each rate.
struct lr_range_result {
  /// An update of the test.
  struct point {
    double learning_rate;  ///< of the first parameter group
    double loss;           ///< before the update
    double smoothed_loss;  ///< moving average
  };
  std::vector<point> points;  ///< in the order of the updates
  bool diverged = false;      ///< the test ended before the highest rate
  double steepest = 0.0;      ///< rate at which the smoothed loss fell fastest per decade; 0 if it never fell
  double lowest = 0.0;        ///< rate of the lowest smoothed loss; a tenth of it is a cautious choice
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Throws error (E12) for invalid options.
inline void require_sound_range(lr_range_options const& options) {
  bool const rates = options.lowest > 0.0 && options.highest > options.lowest && std::isfinite(options.highest);
  bool const smooth = options.smoothing >= 0.0 && options.smoothing < 1.0 && options.stop_at > 1.0;
  if (rates && smooth && options.updates >= 2) return;
  throw error("E12",
              "an lr range test goes from a lowest rate above 0 to a higher one in at least 2 updates, with smoothing in "
              "[0, 1) and stop_at above 1. Look at keel::lr_range_options.");
}

/// Collects the points of a range test and decides when to end it.
class range_points {
 public:
  range_points(lr_range_options const& options, lr_range_result& result) : options_(options), result_(result) {}

  bool operator()(result::updated const& updated) {
    average_ = options_.smoothing * average_ + (1.0 - options_.smoothing) * updated.loss;
    auto const count = static_cast<double>(result_.points.size() + 1);
    double const smoothed = average_ / (1.0 - std::pow(options_.smoothing, count));
    result_.points.push_back({updated.learning_rate, updated.loss, smoothed});
    if (smoothed < lowest_) {
      lowest_ = smoothed;
      result_.lowest = updated.learning_rate;
    }
    // The first losses depend more on the batches than on the rate.
    bool const settled = count > 1.0 / (1.0 - options_.smoothing);
    bool const far_off = settled && smoothed > lowest_ + (options_.stop_at - 1.0) * std::abs(lowest_);
    return !far_off && static_cast<std::int64_t>(result_.points.size()) < options_.updates;
  }

 private:
  lr_range_options const& options_;
  lr_range_result& result_;
  double average_ = 0.0;
  double lowest_ = std::numeric_limits<double>::infinity();
};

/// Returns the rate at which the smoothed loss fell fastest per decade; 0 if it never fell.
inline double steepest_rate(std::vector<lr_range_result::point> const& points) {
  double steepest = 0.0;
  double rate = 0.0;
  for (std::size_t i = 1; i + 1 < points.size(); ++i) {
    auto const& before = points[i - 1];
    auto const& after = points[i + 1];
    double const slope = (after.smoothed_loss - before.smoothed_loss) / std::log(after.learning_rate / before.learning_rate);
    if (slope >= steepest) continue;
    steepest = slope;
    rate = points[i].learning_rate;
  }
  return rate;
}

}  // namespace keel::detail::inline KEEL_MODE
