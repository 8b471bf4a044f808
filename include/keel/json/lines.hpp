// A file of JSON lines that is only ever added to. A kill tears at most its last line, and a disk that is full for a while
// costs none: what cannot be written waits in memory.
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
  /// Bytes that may wait for a disk before that ends the run.
  static constexpr std::size_t max_waiting = 16 << 20;

  json_lines(std::filesystem::path name, file_system& files) : files_(files), file_(std::move(name), files) {}

  /// Cuts the file to its first `lines`, which takes away what an abandoned future wrote, and a line torn by a kill.
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

  /// Renames what an earlier run left to the first free `abandoned-NAME`, so that the record begins empty. Returns the new name;
  /// empty: there was nothing.
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

  /// Lines that the file has; a truncated last one does not count.
  std::int64_t lines() {
    if (!files_.exists(name())) return 0;
    std::string const content = files_.read(name(), file_system::max_record_bytes);
    return static_cast<std::int64_t>(std::count(content.begin(), content.end(), '\n'));
  }

  /// Throws file_error (E02) only where too much waits already.
  void add(nlohmann::ordered_json const& line) {
    file_.add(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
    try {
      flush();
      trouble_.clear();
    } catch (file_error const& thrown) {
      // Said by whoever asks for the trouble, and tried again with the next line.
      trouble_ = thrown.what();
      if (file_.waiting() > max_waiting) throw;
    }
  }
  /// Why lines are waiting; empty: none are.
  std::string const& trouble() const { return trouble_; }

  /// Writes what waits. Throws file_error (E02); it waits on then.
  void flush() {
    if (file_.waiting() > 0 && !is_mended_) {
      // A line that a kill tore gets its end, so that the next one stands alone.
      if (!ends_with_line()) file_.add_first("\n");
      is_mended_ = true;
    }
    file_.flush();
  }

  std::uint64_t size() { return files_.exists(name()) ? files_.size(name()) : 0; }

  /// Makes what was written so far durable; beside a thread that adds lines, too.
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
