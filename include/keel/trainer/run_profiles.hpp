// Profiles of a run: selects the updates to record, and writes the files on a separate thread.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <keel/metrics/phase_times.hpp>
#include <keel/metrics/sink_thread.hpp>
#include <keel/policy/profile.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace keel::inline KEEL_MODE {

class run_profiles final : private phase_listener {
 public:
  /// Does nothing if the recipe has no profile. `directory`: the folder `profiles` of the run directory. Throws error (E12) if it is empty
  /// although the recipe records profiles.
  run_profiles(profile::settings const& settings, std::filesystem::path directory);
  run_profiles(run_profiles const&) = delete;
  run_profiles& operator=(run_profiles const&) = delete;

  /// Sets the device of the run. Call before the first update.
  void use(c10::Device device) { device_ = device; }
  /// Requests a profile of the next updates. `why`: the symptom that it may explain.
  void symptom(std::string const& why) {
    if (settings_.kind != profile::kind::off && symptom_.empty()) symptom_ = why;
  }

  /// Call before each update; begins, continues or ends a profile. `update`: applied updates; `attempt`: completed attempts.
  void before_update(std::int64_t update, std::int64_t attempt, phase_clock& phases) {
    if (settings_.kind == profile::kind::off) return;
    // Beginning or ending a profile takes milliseconds, longer than a small update: leave that out of the measured time.
    phase_clock::left_out const cost(phases);
    if (is_recording()) {
      if (should_continue()) return;
      phases.listen(nullptr);
      finish();
    }
    if (begin(update, attempt)) phases.listen(this);
  }
  /// Writes the open profile and waits for the writer. Call when the run ends, even if an exception ends it.
  void end(phase_clock& phases) {
    phases.listen(nullptr);
    if (is_recording()) {
      ++ended_;
      finish();
    }
    if (writer_) writer_->drain();
  }

  struct written {
    std::filesystem::path path;
    std::int64_t first_update;
    std::string why;
  };
  /// Returns the next profile whose files are complete, each once; nullopt if there is none.
  std::optional<written> take_written();
  /// Returns why a profile could not be recorded or written, each reason once; empty: nothing new.
  std::string take_failure_message() {
    if (!trouble_.empty()) return std::exchange(trouble_, {});
    return writer_ ? writer_->take_trouble() : std::string();
  }

 private:
  static constexpr std::size_t max_profiles = 16;
  static constexpr std::int64_t between_symptoms = 100;  ///< in updates

  struct open_profile;
  /// Profiles that the writer thread has completed.
  struct written_profiles {
    std::mutex mutex;
    std::deque<written> all;
  };

  bool is_recording() const { return open_ != nullptr; }
  bool begin(std::int64_t update, std::int64_t attempt);
  /// Counts an update of the open profile; false if it was the last one.
  bool should_continue();
  void finish();
  void record_memory();

  void phase_began(run_phase which) override;
  void phase_ended(run_phase which) override;

  profile::settings settings_;
  std::filesystem::path directory_;
  c10::Device device_{c10::kCPU};
  std::string symptom_;                            ///< not profiled yet; empty: none
  std::int64_t last_symptom_ = -between_symptoms;  ///< in attempts
  std::int64_t ended_ = 0;                         ///< updates of the open profile, including warm-up
  std::int64_t first_update_ = 0;
  std::string why_;
  std::string trouble_;
  std::shared_ptr<open_profile> open_;  ///< null: no profile is open
  /// Shared with the writer thread, which outlives this object if it hangs.
  std::shared_ptr<written_profiles> written_ = std::make_shared<written_profiles>();
  std::optional<sink_thread> writer_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/run_profiles.ipp>
#endif
