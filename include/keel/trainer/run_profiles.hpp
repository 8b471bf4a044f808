// The profiles of a run: which updates are recorded, and the files that come of it, which a thread writes.
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
  /// Of a run whose recipe has no profile it does nothing. `directory`: `profiles` of the run directory.
  run_profiles(profile::settings const& settings, std::filesystem::path directory);
  run_profiles(run_profiles const&) = delete;
  run_profiles& operator=(run_profiles const&) = delete;

  /// Before the first update: where the run trains.
  void use(c10::Device device) { device_ = device; }
  /// Something that a profile of the next updates would explain.
  void symptom(std::string const& why) {
    if (settings_.kind != profile::kind::off && symptom_.empty()) symptom_ = why;
  }

  /// An update is about to begin: `update` were applied, `attempt` ended.
  void before_update(std::int64_t update, std::int64_t attempt, phase_clock& phases) {
    if (settings_.kind == profile::kind::off) return;
    // Where a profile begins and ends it takes milliseconds, more than a small update.
    phase_clock::left_out const cost(phases);
    if (is_recording()) {
      if (should_continue()) return;
      phases.listen(nullptr);
      finish();
    }
    if (begin(update, attempt)) phases.listen(this);
  }
  /// The run ends, or is about to end by an exception; what is recorded is written.
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
  /// Once for each profile whose files are there.
  std::optional<written> take_written();
  /// Why one could not be written; empty: nothing new.
  std::string take_trouble() {
    if (!trouble_.empty()) return std::exchange(trouble_, {});
    return writer_ ? writer_->take_trouble() : std::string();
  }

 private:
  static constexpr std::size_t max_profiles = 16;
  static constexpr std::int64_t between_symptoms = 100;  ///< updates

  struct open_profile;
  /// What the writer has ended.
  struct written_profiles {
    std::mutex mutex;
    std::deque<written> all;
  };

  bool is_recording() const { return open_ != nullptr; }
  bool begin(std::int64_t update, std::int64_t attempt);
  /// Another update belongs to the profile.
  bool should_continue();
  void finish();
  void record_memory();

  void phase_began(run_phase which) override;
  void phase_ended(run_phase which) override;

  profile::settings settings_;
  std::filesystem::path directory_;
  c10::Device device_{c10::kCPU};
  std::string symptom_;                            ///< that has no profile yet
  std::int64_t last_symptom_ = -between_symptoms;  ///< attempts
  std::int64_t ended_ = 0;                         ///< updates of the open profile, those that are thrown away included
  std::int64_t first_update_ = 0;
  std::string why_;
  std::string trouble_;
  std::shared_ptr<open_profile> open_;                                                ///< null: none is
  std::shared_ptr<written_profiles> written_ = std::make_shared<written_profiles>();  ///< a writer that hangs keeps it
  std::optional<sink_thread> writer_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/run_profiles.ipp>
#endif
