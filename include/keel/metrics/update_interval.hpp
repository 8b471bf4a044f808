// Several updates as one line of the record: means, sums and extremes of all of them, and no sample of one.
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

/// Of the open interval. Part of a checkpoint, so that a run that is resumed inside of one ends with the same lines.
class update_interval {
 public:
  /// Adds one update, with what the program logged for it. Returns the line of an interval that has `every` of them now; for one
  /// that is the update itself. Of loss and norm the line has the mean over applied updates, NaN where none was; of scores the one
  /// farthest from 0; tokens and time are sums, of memory it has the highest peaks and the most that was
  /// reserved; of everything else the last.
  std::optional<update_metrics> add(update_metrics const& one, std::vector<reduced_value> const& own, std::int64_t every);

  /// What is left at the end of a run; nothing where the last update ended an interval.
  std::optional<update_metrics> take();

  bool is_open() const { return count_ > 0; }
  /// Of the last line before an open interval.
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
  /// Values of several updates, as one.
  struct reduction_over_updates {
    double value = 0.0;   ///< the weighted sum, for a mean
    double weight = 0.0;  ///< of the updates that had a value

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
  std::uint64_t batch_ = 0;      ///< checksum of checksums
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
