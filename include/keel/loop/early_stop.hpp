// The mechanism of evaluation::early_stop: how many evaluations in a row brought no better loss.
#pragma once

#include <cstdint>
#include <keel/checkpoint/best.hpp>
#include <keel/collective/agreed.hpp>
#include <keel/step/finite.hpp>

namespace keel {

class early_stop {
 public:
  /// One more evaluation; what is not finite is no better loss. True if that is the `limit`-th in a row without one; a limit of
  /// 0 is none.
  bool evaluated(agreed<double> const& loss, std::int64_t limit) {
    bool const better = best_.offer(as_finite(loss), 0);
    without_ = better ? 0 : without_ + 1;
    return is_over(limit);
  }
  /// There were that many, in this process or before a resume.
  bool is_over(std::int64_t limit) const { return limit > 0 && without_ >= limit; }

  template <class Archive>
  void visit(Archive& archive) {
    archive("best", best_);
    archive("without", without_);
  }

 private:
  best_so_far best_;
  std::int64_t without_ = 0;
};

}  // namespace keel
