// When a run saves: after so many updates, or after so much time.
#pragma once

#include <chrono>
#include <cstdint>
#include <keel/policy/checkpoint.hpp>

namespace keel {

template <class Clock>
class checkpoint_cadence {
 public:
  explicit checkpoint_cadence(checkpoint::settings const& settings) : settings_(settings) {}

  /// The run begins, or a checkpoint was saved.
  void restart() { last_ = Clock::now(); }

  /// After so many updates; `updated`: the last window brought one more. Time passes anyhow.
  bool is_due(std::int64_t updates, bool updated) const {
    switch (settings_.kind) {
      case checkpoint::kind::every_steps:
        return updated && updates % settings_.interval == 0;
      case checkpoint::kind::every_seconds:
        return Clock::now() - last_ >= std::chrono::seconds(settings_.interval);
      default:
        return false;
    }
  }

 private:
  checkpoint::settings settings_;
  typename Clock::time_point last_{};
};

}  // namespace keel
