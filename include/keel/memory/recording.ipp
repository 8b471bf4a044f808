// Definitions for recording.hpp.
#pragma once

#include <keel/core/replace_file.hpp>
#include <keel/memory/recording.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::memory::detail::inline KEEL_MODE {

KEEL_BODY void pickle_writer::integer(std::int64_t value) {
  if (value >= INT32_MIN && value <= INT32_MAX) {
    bytes_ += 'J';
    little_endian(static_cast<std::uint64_t>(value), 4);
  } else {
    bytes_ += "\x8a\x08";
    little_endian(static_cast<std::uint64_t>(value), 8);
  }
}

KEEL_BODY void pickle_writer::text(std::string const& value) {
  bytes_ += 'X';
  little_endian(value.size(), 4);
  bytes_ += value;
}

}  // namespace keel::memory::detail::inline KEEL_MODE

namespace keel::memory::inline KEEL_MODE {

KEEL_BODY recording::recording(std::size_t most) : most_(most) {
  auto& counts = detail::process_counts::instance();
  std::lock_guard<std::mutex> const lock(counts.listening);
  if (counts.listener != nullptr) throw std::logic_error("keel::memory::recording: this process is being recorded already.");
  counts.listener = this;
  counts.has_listener = true;
}

KEEL_BODY recording::~recording() {
  auto& counts = detail::process_counts::instance();
  std::lock_guard<std::mutex> const lock(counts.listening);
  counts.has_listener = false;
  counts.listener = nullptr;
}

KEEL_BODY std::string recording::pickle() const {
  std::lock_guard<std::mutex> const lock(detail::process_counts::instance().listening);
  detail::pickle_writer out;
  auto const number = [&](char const* key, std::int64_t value) {
    out.text(key);
    out.integer(value);
  };
  auto const word = [&](char const* key, std::string const& value) {
    out.text(key);
    out.text(value);
  };
  auto const frames = [&](std::size_t phase) {
    out.text("frames");
    out.begin_list();
    out.begin_dictionary();
    word("name", phases_[phase]);
    word("filename", "keel");
    number("line", 0);
    out.end_dictionary();
    out.end_list();
  };
  out.begin_dictionary();
  out.text("segments");
  out.begin_list();
  for (auto const& [address, live] : live_) {
    out.begin_dictionary();
    number("device", 0);
    number("address", address);
    number("total_size", live.bytes);
    number("allocated_size", live.bytes);
    number("active_size", live.bytes);
    number("requested_size", live.bytes);
    number("stream", 0);
    word("segment_type", "large");
    frames(live.phase);
    out.text("blocks");
    out.begin_list();
    out.begin_dictionary();
    number("address", address);
    number("size", live.bytes);
    number("requested_size", live.bytes);
    word("state", "active_allocated");
    frames(live.phase);
    out.end_dictionary();
    out.end_list();
    out.end_dictionary();
  }
  out.end_list();
  out.text("device_traces");
  out.begin_list();
  out.begin_list();
  for (std::size_t i = 0; i < events_.size(); ++i) {
    event const& one = events_[(oldest_ + i) % events_.size()];
    out.begin_dictionary();
    word("action", one.action);
    number("addr", one.address);
    number("size", one.bytes);
    number("stream", 0);
    number("time_us", one.microseconds);
    frames(one.phase);
    out.end_dictionary();
  }
  out.end_list();
  out.end_list();
  out.end_dictionary();
  return std::move(out).finish();
}

KEEL_BODY void recording::save(std::filesystem::path const& path) const {
  std::string const bytes = pickle();
  file_system files;
  keel::detail::replace_file(files, path, [&](auto const& sink) { sink(bytes.data(), bytes.size()); });
}

KEEL_BODY void recording::freed(void const* at, std::int64_t bytes) {
  // Ignore a block that was allocated before the recording began.
  if (live_.erase(address_of(at)) == 0) return;
  add("free_requested", address_of(at), bytes);
  add("free_completed", address_of(at), bytes);
}

KEEL_BODY void recording::add(char const* action, std::int64_t address, std::int64_t bytes) {
  auto const now = std::chrono::system_clock::now().time_since_epoch();
  event const one{action, address, bytes, std::chrono::duration_cast<std::chrono::microseconds>(now).count(), phase_};
  if (events_.size() < most_) {
    keeping([&] { events_.push_back(one); });
  } else if (most_ > 0) {
    events_[oldest_] = one;
    oldest_ = (oldest_ + 1) % most_;
  }
}

KEEL_BODY std::size_t recording::phase_number(std::string name) {
  for (std::size_t i = 0; i < phases_.size(); ++i) {
    if (phases_[i] == name) return i;
  }
  phases_.push_back(std::move(name));
  return phases_.size() - 1;
}

}  // namespace keel::memory::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
