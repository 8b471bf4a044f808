// Event files for TensorBoard, from any program:
//     keel::tensorboard_writer board("runs/first");
//     board.scalar("train/loss", loss.item<double>(), update);
// and `tensorboard --logdir runs` shows them. One directory is one run; each writer adds a file to it. What is written stays in memory
// until flush() is called, or a call finds that 64 KiB wait or that the last flush is five seconds ago.
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

/// For one thread at a time.
class tensorboard_writer {
 public:
  /// Makes the directory and a new file in it. Its name sorts behind those of the event files that the directory has: TensorBoard
  /// reads them in that order. Throws file_error (E02).
  explicit tensorboard_writer(std::filesystem::path const& directory, file_system& files = real_files());
  tensorboard_writer(tensorboard_writer const&) = delete;
  tensorboard_writer& operator=(tensorboard_writer const&) = delete;
  /// Writes what waits; where that fails, it is lost without a word. Whoever must know calls flush().
  ~tensorboard_writer();

  // All of these throw file_error (E02) where a flush that is due fails; what waits is kept, up to 16 MiB, and tried again with the
  // next call.

  /// `step` is what TensorBoard draws it over: an update. The value is rounded to a float, as TensorBoard does.
  void scalar(std::string_view tag, double value, std::int64_t step);
  /// All of one step.
  void scalars(std::span<named_value const> values, std::int64_t step);
  /// The distribution of a tensor's elements.
  void histogram(std::string_view tag, keel::histogram const& values, std::int64_t step);
  /// Words are Markdown.
  void text(std::string_view tag, std::string_view words, std::int64_t step);
  /// After a rollback or a resume: says that the run abandoned what was written of later steps than `step`, in any file of this
  /// directory. TensorBoard's reader in Python hides all of it; its faster one hides a tag's once the tag is written again.
  void restarted_after(std::int64_t step);

  /// Writes what waits to the file.
  void flush();

  /// Its path.
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
