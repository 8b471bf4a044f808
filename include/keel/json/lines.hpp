// A file of JSON lines that is only ever added to. A kill tears at most its last line, and a disk that is full for a while
// costs none: what cannot be written waits in memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <keel/core/error.hpp>
#include <keel/core/files.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace keel {

template <class Files = posix_files>
class json_lines {
 public:
  /// Bytes that may wait for a disk before that ends the run.
  static constexpr std::size_t most_waiting = 16 << 20;

  json_lines(std::filesystem::path name, Files files) : name_(std::move(name)), files_(std::move(files)) {}

  /// Cuts the file to its first `lines`, which takes away what an abandoned future wrote, and a line torn by a kill.
  void resume_at(std::int64_t lines) {
    if (!files_.exists(name_)) return;
    std::string const content = files_.read(name_);
    std::size_t end = 0;
    for (; lines > 0; --lines) {
      std::size_t const line_end = content.find('\n', end);
      if (line_end == std::string::npos) break;
      end = line_end + 1;
    }
    if (end < content.size()) files_.truncate(name_, end);
  }

  /// Renames what an earlier run left to the first free `abandoned-NAME`, so that the record begins empty. Returns the new name;
  /// empty: there was nothing.
  std::filesystem::path set_aside() {
    if (size() == 0) return {};
    std::string const name = name_.stem().string();
    std::string const extension = name_.extension().string();
    std::filesystem::path free = name_.parent_path() / ("abandoned-" + name + extension);
    for (int again = 2; files_.exists(free); ++again)
      free = name_.parent_path() / ("abandoned-" + name + "-" + std::to_string(again) + extension);
    files_.rename(name_, free);
    return free;
  }

  /// Lines that the file has; a truncated last one does not count.
  std::int64_t lines() {
    if (!files_.exists(name_)) return 0;
    std::string const content = files_.read(name_);
    return static_cast<std::int64_t>(std::count(content.begin(), content.end(), '\n'));
  }

  /// Throws file_error (E02) only where too much waits already.
  void add(nlohmann::ordered_json const& line) {
    waiting_ += line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    waiting_ += '\n';
    try {
      flush();
      trouble_.clear();
    } catch (file_error const& thrown) {
      // Said by whoever asks for the trouble, and tried again with the next line.
      trouble_ = thrown.what();
      if (waiting_.size() > most_waiting) throw;
    }
  }
  /// Why lines are waiting; empty: none are.
  std::string const& trouble() const { return trouble_; }

  /// Writes what waits. Throws file_error (E02); it waits on then.
  void flush() {
    if (waiting_.empty()) return;
    if (!file_) open();
    // A write that failed may have left a part of itself.
    if (torn_) files_.truncate(name_, size_);
    torn_ = true;
    files_.write(file_, name_, waiting_.data(), waiting_.size());
    torn_ = false;
    size_ += waiting_.size();
    waiting_.clear();
  }

  std::uint64_t size() { return files_.exists(name_) ? files_.size(name_) : 0; }

  /// Makes what was written so far durable; beside a thread that adds lines, too.
  void sync() {
    if (is_open_.load(std::memory_order_acquire)) files_.sync(file_, name_);
  }

 private:
  /// A line that a kill tore gets its end, so that the next one stands alone.
  void open() {
    bool const is_new = !files_.exists(name_);
    file_handle file = files_.open_for_append(name_);
    // A file that is synced is still lost with its directory's entry.
    if (is_new) files_.sync_directory(name_.parent_path());
    size_ = files_.size(name_);
    if (size_ > 0 && files_.read(name_).back() != '\n') {
      files_.write(file, name_, "\n", 1);
      ++size_;
    }
    file_ = std::move(file);
    is_open_.store(true, std::memory_order_release);
  }

  std::filesystem::path name_;
  Files files_;
  file_handle file_;
  std::uint64_t size_ = 0;  ///< of whole lines
  bool torn_ = false;
  std::string waiting_;
  std::string trouble_;
  std::atomic<bool> is_open_{false};
};

}  // namespace keel
