// What a trainer's run has come to so far, in numbers; the trainer derives from it.
#pragma once

#include <cstdint>
#include <keel/memory/timeline.hpp>
#include <keel/oom/ladder.hpp>

namespace keel {

template <class Trainer>
class run_figures {
 public:
  std::int64_t updates() const { return self().step_.updates(); }
  std::int64_t skipped() const { return self().step_.skipped(); }
  std::int64_t rungs_taken() const { return self().record_.rungs; }
  double clip_fraction() const { return self().step_.clip_fraction(); }
  double learning_rate() const { return self().step_.learning_rate(); }
  double loss_scale() const { return self().step_.loss_scale(); }
  /// What the recipe, and the rungs that were taken, do for memory.
  memory_relief const& relief() const { return self().step_.relief(); }
  /// Peaks of memory since this trainer was made; empty where nobody counts (keel/memory/statistics.hpp).
  memory::timeline const& memory_timeline() const { return self().recorder_.timeline(); }

 private:
  Trainer const& self() const { return static_cast<Trainer const&>(*this); }
};

}  // namespace keel
