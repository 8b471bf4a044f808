// An append-only file of JSON lines. A kill truncates at most the last line, and a temporarily full disk loses none: lines that cannot be
// written remain in memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <keel/core/appended_file.hpp>
#include <keel/core/error.hpp>
#include <keel/core/file_system.hpp>
#include <keel/libtorch/mode.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace keel::inline KEEL_MODE {

class json_lines {
 public:
  /// Maximum number of pending bytes before a failed write ends the run.
  static constexpr std::size_t max_waiting = 16 << 20;

  json_lines(std::filesystem::path name, file_system& files) : files_(files), file_(std::move(name), files) {}

  /// Truncates the file to its first `lines` lines. Removes lines that were written after the checkpoint that the run
  /// resumes from, and a line truncated by a kill.
  void resume_at(std::int64_t lines) {
    if (!files_.exists(name())) return;
    std::string const content = files_.read(name(), file_system::max_record_bytes);
    std::size_t end = 0;
    for (; lines > 0; --lines) {
      std::size_t const line_end = content.find('\n', end);
      if (line_end == std::string::npos) break;
      end = line_end + 1;
    }
    if (end >= content.size()) return;
    file_.close();
    files_.truncate(name(), end);
  }

  /// Renames the file of an earlier run to the first free `abandoned-NAME`, so that the record starts empty. Returns the new name; empty if
  /// there was no content.
  std::filesystem::path set_aside() {
    if (size() == 0) return {};
    std::string const stem = name().stem().string();
    std::string const extension = name().extension().string();
    std::filesystem::path free = name().parent_path() / ("abandoned-" + stem + extension);
    for (int again = 2; files_.exists(free); ++again)
      free = name().parent_path() / ("abandoned-" + stem + "-" + std::to_string(again) + extension);
    file_.close();
    files_.rename(name(), free);
    return free;
  }

  /// Returns the number of lines in the file, without a truncated last one.
  std::int64_t lines() {
    if (!files_.exists(name())) return 0;
    std::string const content = files_.read(name(), file_system::max_record_bytes);
    return static_cast<std::int64_t>(std::count(content.begin(), content.end(), '\n'));
  }

  /// Adds a line. Throws file_error (E02) only if too many bytes are pending already.
  void add(nlohmann::ordered_json const& line) {
    file_.add(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
    try {
      flush();
      trouble_.clear();
    } catch (file_error const& thrown) {
      // Callers of trouble() report it; the next line tries again.
      trouble_ = thrown.what();
      if (file_.waiting() > max_waiting) throw;
    }
  }
  /// Returns why lines are pending; empty if none are.
  std::string const& trouble() const { return trouble_; }

  /// Writes the pending lines. Throws file_error (E02); they then remain pending.
  void flush() {
    if (file_.waiting() > 0 && !is_mended_) {
      // Terminates a line that a kill truncated, so that the next one begins on a new line.
      if (!ends_with_line()) file_.add_first("\n");
      is_mended_ = true;
    }
    file_.flush();
  }

  std::uint64_t size() { return files_.exists(name()) ? files_.size(name()) : 0; }

  /// Makes the lines written so far durable, also while another thread adds lines.
  void sync() { file_.sync(); }

 private:
  bool ends_with_line() {
    std::uint64_t const bytes = size();
    if (bytes == 0) return true;
    char last = '\n';
    files_.read_at(files_.open_for_read(name()), name(), &last, 1, bytes - 1);
    return last == '\n';
  }
  std::filesystem::path const& name() const { return file_.name(); }

  file_system& files_;
  appended_file file_;
  bool is_mended_ = false;
  std::string trouble_;
};

}  // namespace keel::inline KEEL_MODE
