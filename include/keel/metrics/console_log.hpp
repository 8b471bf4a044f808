// The file console.log: the lines of the console, each with its time, whether or not they are printed.
#pragma once

#include <cstddef>
#include <filesystem>
#include <keel/core/appended_file.hpp>
#include <keel/core/file_system.hpp>
#include <keel/metrics/sink.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace keel::inline KEEL_MODE {

/// A sink that receives only lines of text.
class console_log : public metric_sink {
 public:
  /// Creates no file before the first line.
  explicit console_log(std::filesystem::path name) : file_(std::move(name), real_files()) {}

  void scalars(std::int64_t, std::span<named_value const>) override {}
  void text(std::int64_t, std::string_view /*name*/, std::string_view line) override {
    // Lines that the disk has not accepted for a long time are dropped; the record contains the same information.
    if (file_.waiting() > max_waiting) file_.drop();
    file_.add(std::string(line) + "\n");
    file_.flush();
  }
  void flush() override { file_.flush(); }

  /// Returns the line after its UTC time, such as "2026-11-23 20:11:05".
  static std::string dated(std::string_view line);

 private:
  static constexpr std::size_t max_waiting = 1 << 20;
  appended_file file_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/metrics/console_log.ipp>
#endif
