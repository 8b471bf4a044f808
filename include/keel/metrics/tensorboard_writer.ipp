// Definitions for tensorboard_writer.hpp.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <keel/core/error.hpp>
#include <keel/core/seconds_since_1970.hpp>
#include <keel/metrics/event_record.hpp>
#include <keel/metrics/tensorboard_writer.hpp>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

inline constexpr char event_file_prefix[] = "events.out.tfevents.";

/// Creates an event file whose name sorts after the existing ones, even if the clock was set back or another process ended in this second.
KEEL_BODY std::filesystem::path new_event_file(std::filesystem::path const& directory, file_system& files) {
  auto seconds = static_cast<long long>(seconds_since_1970());
  for (auto const& there : files.list(directory)) {
    std::string const name = there.filename().string();
    if (!name.starts_with(event_file_prefix)) continue;
    char* end = nullptr;
    long long const theirs = std::strtoll(name.c_str() + sizeof event_file_prefix - 1, &end, 10);
    if (*end == '.' && theirs < 1'000'000'000'000) seconds = std::max(seconds, theirs + 1);
  }
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {'h', 'o', 's', 't'};
  std::string const stem =
      event_file_prefix + std::to_string(seconds) + "." + host.data() + "." + std::to_string(::getpid()) + ".";
  for (int number = 0;; ++number) {
    auto const name = directory / (stem + std::to_string(number));
    if (files.exists(name)) continue;
    files.create_new(name);
    return name;
  }
}

KEEL_BODY std::filesystem::path made_event_directory(std::filesystem::path const& directory, file_system& files) {
  auto const whole = std::filesystem::absolute(directory);
  files.make_directories(whole);
  return new_event_file(whole, files);
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY tensorboard_writer::tensorboard_writer(std::filesystem::path const& directory, file_system& files)
    : file_(detail::made_event_directory(directory, files), files) {
  file_.add(detail::version_record(detail::seconds_since_1970()));
}

KEEL_BODY tensorboard_writer::~tensorboard_writer() {
  try {
    file_.flush();
  } catch (file_error const&) {
    // A destructor cannot report errors.
  }
}

KEEL_BODY void tensorboard_writer::scalar(std::string_view tag, double value, std::int64_t step) {
  add(detail::scalar_record(detail::seconds_since_1970(), step, tag, value));
  flush_if_due();
}

KEEL_BODY void tensorboard_writer::scalars(std::span<named_value const> values, std::int64_t step) {
  for (auto const& [tag, value] : values) add(detail::scalar_record(detail::seconds_since_1970(), step, tag, value));
  flush_if_due();
}

KEEL_BODY void tensorboard_writer::histogram(std::string_view tag, keel::histogram const& values, std::int64_t step) {
  add(detail::histogram_record(detail::seconds_since_1970(), step, tag, values));
  flush_if_due();
}

KEEL_BODY void tensorboard_writer::text(std::string_view tag, std::string_view words, std::int64_t step) {
  add(detail::text_record(detail::seconds_since_1970(), step, tag, words));
  flush_if_due();
}

KEEL_BODY void tensorboard_writer::restarted_after(std::int64_t step) {
  // TensorBoard also drops values at the step of such a record.
  add(detail::restart_record(detail::seconds_since_1970(), step + 1));
  flush_if_due();
}

KEEL_BODY void tensorboard_writer::flush() {
  flushed_ = clock::now();
  file_.flush();
}

KEEL_BODY void tensorboard_writer::add(std::string const& record) {
  if (file_.waiting() + record.size() > max_waiting) flush();
  file_.add(record);
}

KEEL_BODY void tensorboard_writer::flush_if_due() {
  if (file_.waiting() >= max_buffered || clock::now() - flushed_ >= longest_buffered) flush();
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
