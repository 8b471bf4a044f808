// An append-only file. A temporarily full disk loses no data: bytes that cannot be written remain in memory, and a partial write is
// truncated before the next one.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <keel/core/file_system.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace keel::inline KEEL_MODE {

class appended_file {
 public:
  appended_file(std::filesystem::path name, file_system& files) : name_(std::move(name)), files_(files) {}

  std::filesystem::path const& name() const { return name_; }
  bool is_open() const { return is_open_.load(std::memory_order_acquire); }

  /// Adds bytes for the next flush.
  void add(std::string_view bytes) { waiting_ += bytes; }
  /// Inserts bytes before all pending ones.
  void add_first(std::string_view bytes) { waiting_.insert(0, bytes); }
  std::size_t waiting() const { return waiting_.size(); }
  /// Discards the pending bytes.
  void drop() { waiting_.clear(); }
  /// Closes the file after it was renamed or truncated elsewhere; the next flush opens it again.
  void close() {
    is_open_.store(false, std::memory_order_release);
    file_ = file_handle();
    size_ = 0;
    torn_ = false;
  }

  /// Writes the pending bytes. Throws file_error (E02); they then remain pending.
  void flush() {
    if (waiting_.empty()) return;
    if (!file_) open();
    if (torn_) files_.truncate(name_, size_);
    torn_ = true;
    files_.write(file_, name_, waiting_.data(), waiting_.size());
    torn_ = false;
    size_ += waiting_.size();
    waiting_.clear();
  }

  /// Makes the bytes written so far durable, also while another thread adds some. Throws file_error (E02).
  void sync() {
    if (is_open()) files_.sync(file_, name_);
  }

 private:
  void open() {
    bool const is_new = !files_.exists(name_);
    file_handle file = files_.open_for_append(name_);
    // A synced file is still lost if its directory's entry is.
    if (is_new) files_.sync_directory(name_.parent_path());
    size_ = files_.size(name_);
    file_ = std::move(file);
    is_open_.store(true, std::memory_order_release);
  }

  std::filesystem::path name_;
  file_system& files_;
  file_handle file_;
  std::uint64_t size_ = 0;  ///< bytes that were written completely
  bool torn_ = false;
  std::string waiting_;
  std::atomic<bool> is_open_{false};
};

}  // namespace keel::inline KEEL_MODE
