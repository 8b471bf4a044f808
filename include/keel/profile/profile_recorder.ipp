// Definitions for profile_recorder.hpp.
#pragma once

#include <algorithm>
#include <keel/profile/profile_recorder.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

struct profile_recorder::begun_operation : at::ObserverContext {
  explicit begun_operation(std::int64_t at) : begin(at) {}
  std::int64_t begin;
};

KEEL_BODY void profile_recorder::add(recorded_range range) {
  // The range was open during a restart.
  if (range.begin < 0 || range.end < range.begin) return;
  std::lock_guard<std::mutex> const lock(mutex_);
  if (found_.ranges.size() < most_) {
    found_.ranges.push_back(std::move(range));
  } else {
    ++found_.left_out;
  }
}

KEEL_BODY void profile_recorder::restart() {
  std::lock_guard<std::mutex> const lock(mutex_);
  found_ = {};
  auto const before = now();
  began_.store(clock::now());
  if (phase_) phase_->second = std::max<std::int64_t>(phase_->second - before, 0);
}

KEEL_BODY void profile_recorder::memory(std::int64_t bytes) {
  std::int64_t const at = now();
  std::lock_guard<std::mutex> const lock(mutex_);
  found_.memory.push_back({at, bytes});
}

KEEL_BODY recorded_profile profile_recorder::finish() {
  scope_.reset();
  if (phase_) phase_ended(phase_->first);
  recorded_profile all;
  std::lock_guard<std::mutex> const lock(mutex_);
  found_.length = now();
  found_.main_thread = main_thread_;
  std::swap(all, found_);
  return all;
}

KEEL_BODY void profile_recorder::phase_began(run_phase which) { phase_.emplace(which, now()); }

KEEL_BODY void profile_recorder::phase_ended(run_phase which) {
  if (!phase_ || phase_->first != which) return;
  add({to_string(which), first_phase_track + static_cast<std::uint64_t>(which), phase_->second, now()});
  phase_.reset();
}

KEEL_BODY std::unique_ptr<at::ObserverContext> profile_recorder::began(at::RecordFunction const&) {
  return std::make_unique<begun_operation>(now());
}

KEEL_BODY void profile_recorder::ended(at::RecordFunction const& operation, at::ObserverContext& context) {
  std::int64_t const end = now();
  add({operation.name(), operation.threadId(), static_cast<begun_operation&>(context).begin, end});
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
