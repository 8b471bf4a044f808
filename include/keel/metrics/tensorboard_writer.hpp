// Event files for TensorBoard, from any program:
//     keel::tensorboard_writer board("runs/first");
//     board.scalar("train/loss", loss.item<double>(), update);
// Then run `tensorboard --logdir runs`. One directory is one run; each writer adds a file to it. Writes are buffered. They are
// flushed by flush(), and by any call that finds 64 KiB buffered or the last flush five seconds ago.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <keel/core/appended_file.hpp>
#include <keel/core/file_system.hpp>
#include <keel/metrics/histogram.hpp>
#include <keel/metrics/sink.hpp>
#include <span>
#include <string>
#include <string_view>

namespace keel::inline KEEL_MODE {

/// Writes TensorBoard event files. Not thread-safe.
class tensorboard_writer {
 public:
  /// Creates the directory and a new file in it. Its name sorts after those of existing event files, because TensorBoard reads
  /// them in that order. Throws file_error (E02).
  explicit tensorboard_writer(std::filesystem::path const& directory, file_system& files = real_files());
  tensorboard_writer(tensorboard_writer const&) = delete;
  tensorboard_writer& operator=(tensorboard_writer const&) = delete;
  /// Flushes the buffer and ignores errors. Call flush() first to detect them.
  ~tensorboard_writer();

  // All of these throw file_error (E02) if a flush that is due fails. The buffer is then kept, up to 16 MiB, and the next call
  // tries again.

  /// Writes a value. `step` is the x axis, such as the update. The value is rounded to a float, as TensorBoard does.
  void scalar(std::string_view tag, double value, std::int64_t step);
  /// Writes several values of one step.
  void scalars(std::span<named_value const> values, std::int64_t step);
  /// Writes the histogram of a tensor's elements.
  void histogram(std::string_view tag, keel::histogram const& values, std::int64_t step);
  /// Writes a text in Markdown.
  void text(std::string_view tag, std::string_view words, std::int64_t step);
  /// Marks values after `step`, in any file of this directory, as abandoned. Call it after a rollback or a resume.
  /// TensorBoard's Python reader hides all of them. Its faster reader hides a tag's values once the tag is written again.
  void restarted_after(std::int64_t step);

  /// Writes the buffer to the file.
  void flush();

  /// Returns the file's path.
  std::filesystem::path const& file() const { return file_.name(); }

 private:
  using clock = std::chrono::steady_clock;
  static constexpr std::size_t max_buffered = 64 << 10;
  static constexpr std::size_t max_waiting = 16 << 20;
  static constexpr std::chrono::seconds longest_buffered{5};

  void add(std::string const& record);
  void flush_if_due();

  appended_file file_;
  clock::time_point flushed_ = clock::now();
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/metrics/tensorboard_writer.ipp>
#endif
