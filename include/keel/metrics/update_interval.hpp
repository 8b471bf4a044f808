// Combines several updates into one line of the record: means, sums and extremes of all of them instead of samples.
#pragma once

#include <array>
#include <cstdint>
#include <keel/memory/phase_watch.hpp>
#include <keel/metrics/metric.hpp>
#include <keel/metrics/update_metrics.hpp>
#include <optional>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// The open interval. Saved in checkpoints, so that a run that is resumed within an interval writes the same lines.
class update_interval {
 public:
  /// Adds an update and the values that the program logged for it. Returns the line if the interval now has `every` updates; else nullopt.
  /// A line of one update is the update itself. In other lines loss and norm are means over applied updates (NaN if there are none), scores
  /// are the value farthest from 0, tokens and time are sums, memory is the highest peaks and the largest reserved size, and all other
  /// values are the last ones.
  std::optional<update_metrics> add(update_metrics const& one, std::vector<reduced_value> const& own, std::int64_t every);

  /// Returns the incomplete interval at the end of a run; nullopt if none is open.
  std::optional<update_metrics> take();

  bool is_open() const { return count_ > 0; }
  /// Returns the update of the last line before the open interval.
  std::int64_t begins_after_update() const { return after_update_; }
  std::int64_t begins_after_attempt() const { return after_attempt_; }

  template <class Archive>
  void visit(Archive& archive) {
    archive("after_update", after_update_);
    archive("after_attempt", after_attempt_);
    archive("update", last_.update);
    archive("attempt", last_.attempt);
    archive("epoch", last_.epoch);
    archive("learning_rate", last_.learning_rate);
    archive("loss_scale", last_.loss_scale);
    archive("skipped", last_.skipped);
    archive("count", count_);
    archive("applied", applied_);
    archive("clipped", clipped_);
    archive("loss", loss_);
    archive("gradient_norm", gradient_norm_);
    archive("tokens", tokens_);
    archive("milliseconds", milliseconds_);
    archive("skipped_because", skipped_because_);
    archive("own", own_);
    archive.optional_field("rollbacks", last_.rollbacks);
    archive.optional_field("rungs", last_.rungs);
    archive.optional_field("measured", measured_);
    archive.optional_field("times", times_);
    archive.optional_field("batch", batch_);
  }

 private:
  /// A reduction over several updates.
  struct reduction_over_updates {
    double value = 0.0;   ///< the weighted sum, for a mean
    double weight = 0.0;  ///< sum over the updates that had a value

    void add(double one, double with_weight, over_updates how);
    std::optional<double> result(over_updates how) const;

    template <class Archive>
    void visit(Archive& archive) {
      archive("value", value);
      archive("weight", weight);
    }
  };
  /// A value that the program logged.
  struct own_value {
    std::string name;
    over_updates how = over_updates::last;
    reduction_over_updates values;

    template <class Archive>
    void visit(Archive& archive) {
      archive("name", name);
      archive("how", how);
      archive("values", values);
    }
  };

  std::int64_t after_update_ = 0;
  std::int64_t after_attempt_ = 0;
  update_metrics last_;
  std::int64_t count_ = 0;
  std::int64_t applied_ = 0;
  std::int64_t clipped_ = 0;
  double loss_ = 0.0;           ///< sum over applied updates
  double gradient_norm_ = 0.0;  ///< sum over applied updates
  std::int64_t tokens_ = 0;
  double milliseconds_ = 0.0;
  phase_times times_;
  std::uint64_t batch_ = 0;      ///< checksum of the updates' checksums
  std::string skipped_because_;  ///< the last reason
  std::array<std::int64_t, memory::phases> peaks_{};
  std::int64_t reserved_ = 0;
  std::int64_t between_ = 0;
  measured_metrics<reduction_over_updates> measured_;
  std::vector<own_value> own_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/metrics/update_interval.ipp>
#endif
