// Records operations and phases during its lifetime. Usable without a trainer:
//     keel::profile_recorder recorder;
//     loss_of(batch).backward();
//     keel::recorded_profile const all = recorder.finish();
//     std::ofstream("trace.json") << keel::chrome_trace(all);
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <keel/core/operation_observer.hpp>
#include <keel/metrics/phase_times.hpp>
#include <keel/profile/recorded_profile.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace keel::inline KEEL_MODE {

/// Must be finished or destroyed on the thread that created it.
class profile_recorder final : private operation_observer, public phase_listener {
 public:
  /// `most`: maximum number of recorded ranges. Throws error (E12) if eight observers are already active in this process.
  explicit profile_recorder(std::size_t most = 500'000) : most_(most) {
    scope_.emplace(static_cast<operation_observer&>(*this));
  }
  profile_recorder(profile_recorder const&) = delete;
  profile_recorder& operator=(profile_recorder const&) = delete;

  /// Discards everything recorded so far.
  void restart();
  /// Records the number of allocated bytes.
  void memory(std::int64_t bytes);
  /// Ends the recording and returns it.
  recorded_profile finish();

  void phase_began(run_phase which) override;
  void phase_ended(run_phase which) override;

 private:
  using clock = std::chrono::steady_clock;
  struct begun_operation;

  std::unique_ptr<at::ObserverContext> began(at::RecordFunction const& operation) override;
  void ended(at::RecordFunction const& operation, at::ObserverContext& context) override;
  std::int64_t now() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now() - began_.load()).count();
  }
  void add(recorded_range range);

  std::size_t most_;
  std::atomic<clock::time_point> began_{clock::now()};
  std::mutex mutex_;
  recorded_profile found_;
  std::optional<std::pair<run_phase, std::int64_t>> phase_;
  std::uint64_t main_thread_ = at::RecordFunction::currentThreadId();
  std::optional<operation_observer::scope> scope_;  ///< declared last, so that recording ends before the members are destroyed
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/profile/profile_recorder.ipp>
#endif
