// How many updates there were, and what became of them.
#pragma once

#include <cstdint>

namespace keel {

class update_counts {
 public:
  std::int64_t updates() const { return updates_; }
  std::int64_t skipped() const { return skipped_; }
  /// The share of the applied updates that the clip policy changed; 0 before the first.
  double clip_fraction() const { return updates_ == 0 ? 0.0 : static_cast<double>(clipped_) / static_cast<double>(updates_); }

 protected:
  template <class Archive>
  void visit_counts(Archive& archive) {
    archive("updates", updates_);
    archive("skipped", skipped_);
    archive("clipped", clipped_);
  }

  std::int64_t updates_ = 0, skipped_ = 0, clipped_ = 0;
};

}  // namespace keel
