// A disk in memory whose power can be cut before any call. What was not synced is gone then, or some of it is: of a file any
// beginning, of a directory its changes up to any one of them, in their order.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <exception>
#include <filesystem>
#include <keel/core/file_system.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

namespace keel_test {

struct power_cut : std::exception {
  char const* what() const noexcept override { return "the power was cut"; }
};

class forgetful_disk {
 public:
  using path = std::filesystem::path;

  int calls = 0;
  int cut_at = 1 << 30;

  /// The power comes back. With a seed, some of what was not synced is there, too.
  void come_back(std::optional<std::uint64_t> seed = {}) {
    std::mt19937_64 random(seed.value_or(0));
    forget(*root_, seed ? &random : nullptr);
    open_.clear();
    cut_at = 1 << 30;
    calls = 0;
  }

 private:
  friend class forgetful_files;
  struct node;
  using directory = std::map<std::string, std::shared_ptr<node>>;
  struct node {
    bool is_directory = false;
    std::string live, durable;
    directory entries, durable_entries;
    std::vector<directory> history;  ///< after each change since the last sync
    void changed() { history.push_back(entries); }
  };

  static void forget(node& of, std::mt19937_64* random) {
    if (!of.is_directory) {
      if (random != nullptr && of.live != of.durable && (*random)() % 2 == 0) {
        of.live.resize((*random)() % (of.live.size() + 1));
      } else {
        of.live = of.durable;
      }
      of.durable = of.live;
      return;
    }
    std::size_t const kept = random != nullptr ? (*random)() % (of.history.size() + 1) : 0;
    of.entries = kept == 0 ? of.durable_entries : of.history[kept - 1];
    of.durable_entries = of.entries;
    of.history.clear();
    for (auto& [name, child] : of.entries) forget(*child, random);
  }

  std::shared_ptr<node> find(path const& name) {
    std::shared_ptr<node> at = root_;
    for (auto const& part : name.lexically_normal().relative_path()) {
      if (part.empty() || part == ".") continue;
      auto const found = at->entries.find(part.string());
      if (found == at->entries.end()) return nullptr;
      at = found->second;
    }
    return at;
  }
  std::shared_ptr<node> require(char const* doing, path const& name) {
    auto const found = find(name);
    if (!found) keel::detail::throw_file_error(doing, name, ENOENT);
    return found;
  }

  std::mutex mutex_;
  std::shared_ptr<node> root_ = [] {
    auto made = std::make_shared<node>();
    made->is_directory = true;
    return made;
  }();
  std::map<int, std::shared_ptr<node>> open_;
};

/// That disk as keel takes it.
class forgetful_files : public keel::file_system {
 public:
  explicit forgetful_files(std::shared_ptr<forgetful_disk> disk = nullptr) : disk_(std::move(disk)) {}

  void make_directories(path const& name) override {
    auto const lock = next();
    auto at = disk_->root_;
    for (auto const& part : name.lexically_normal().relative_path()) {
      auto& entry = at->entries[part.string()];
      if (!entry) {
        entry = std::make_shared<forgetful_disk::node>();
        entry->is_directory = true;
        at->changed();
      }
      at = entry;
    }
  }
  keel::file_handle create(path const& name) override { return open(name, true, true); }
  keel::file_handle create_new(path const& name) override {
    if (exists(name)) throw keel::file_error("E02", "cannot create " + name.string() + ": File exists.");
    return open(name, true, true);
  }
  keel::file_handle open_for_append(path const& name) override { return open(name, true, false); }
  keel::file_handle open_for_read(path const& name) override { return open(name, false, false); }
  void write(keel::file_handle const& file, path const&, char const* bytes, std::size_t count) override {
    {
      // A cut in the middle of a write leaves half of it.
      std::lock_guard<std::mutex> const lock(disk_->mutex_);
      if (disk_->calls + 1 == disk_->cut_at) disk_->open_.at(file.get())->live.append(bytes, count / 2);
    }
    auto const lock = next();
    disk_->open_.at(file.get())->live.append(bytes, count);
  }
  void begin_writing_back(keel::file_handle const&, std::uint64_t, std::uint64_t) override {}
  void sync(keel::file_handle const& file, path const&) override {
    auto const lock = next();
    auto& node = *disk_->open_.at(file.get());
    node.durable = node.live;
  }
  std::string sync_directory(path const& name) override {
    auto const lock = next();
    auto const node = disk_->require("sync", name);
    node->durable_entries = node->entries;
    node->history.clear();
    return {};
  }
  void truncate(path const& name, std::uint64_t size) override {
    auto const lock = next();
    disk_->require("truncate", name)->live.resize(size);
  }
  void rename(path const& from, path const& to) override {
    auto const lock = next();
    auto const source = disk_->require("rename", from.parent_path());
    auto const moved = disk_->require("rename", from);
    auto const target = disk_->require("rename", to.parent_path());
    source->entries.erase(from.filename().string());
    target->entries[to.filename().string()] = moved;
    target->changed();
  }
  void remove_file(path const& name) override {
    auto const lock = next();
    auto const parent = disk_->find(name.parent_path());
    if (!parent || parent->entries.erase(name.filename().string()) == 0) return;
    parent->changed();
  }
  bool remove_directory(path const& name) override {
    {
      std::lock_guard<std::mutex> const lock(disk_->mutex_);
      auto const found = disk_->find(name);
      if (found && !found->entries.empty()) return false;
    }
    return remove_file(name), true;
  }
  keel::file_kind kind(path const& name) override {
    std::lock_guard<std::mutex> const lock(disk_->mutex_);
    auto const found = disk_->find(name);
    if (!found) return keel::file_kind::none;
    return found->is_directory ? keel::file_kind::directory : keel::file_kind::file;
  }
  bool is_named(keel::file_handle const& file, path const& name) override {
    std::lock_guard<std::mutex> const lock(disk_->mutex_);
    return disk_->open_.at(file.get()) == disk_->find(name);
  }
  bool exists(path const& name) override {
    std::lock_guard<std::mutex> const lock(disk_->mutex_);
    return disk_->find(name) != nullptr;
  }
  std::uint64_t size(path const& name) override {
    std::lock_guard<std::mutex> const lock(disk_->mutex_);
    return disk_->require("read the size of", name)->live.size();
  }
  std::vector<path> list(path const& name) override {
    std::lock_guard<std::mutex> const lock(disk_->mutex_);
    std::vector<path> names;
    for (auto const& [entry, node] : disk_->require("list", name)->entries) names.push_back(name / entry);
    return names;
  }
  std::string read(path const& name, std::uint64_t = 0) override {
    std::lock_guard<std::mutex> const lock(disk_->mutex_);
    return disk_->require("read", name)->live;
  }
  std::size_t read_at(keel::file_handle const& file, path const&, char* to, std::size_t count, std::uint64_t offset) override {
    std::lock_guard<std::mutex> const lock(disk_->mutex_);
    std::string const& content = disk_->open_.at(file.get())->live;
    std::size_t const got = offset < content.size() ? std::min<std::size_t>(count, content.size() - offset) : 0;
    content.copy(to, got, offset);
    return got;
  }
  keel::lock_result try_lock(path const& name) override { return {open(name, true, false), {}}; }

 private:
  /// One more call that changes something.
  std::unique_lock<std::mutex> next() {
    std::unique_lock<std::mutex> lock(disk_->mutex_);
    if (++disk_->calls >= disk_->cut_at) throw power_cut();
    return lock;
  }
  keel::file_handle open(path const& name, bool make, bool empty) {
    auto const lock = make ? next() : std::unique_lock<std::mutex>(disk_->mutex_);
    auto const parent = disk_->require("open", name.parent_path());
    auto& entry = parent->entries[name.filename().string()];
    if (!entry) {
      if (!make) keel::detail::throw_file_error("open", name, ENOENT);
      entry = std::make_shared<forgetful_disk::node>();
      parent->changed();
    }
    if (empty) entry->live.clear();
    // A descriptor of the system's stands for the open file and closes itself.
    keel::file_handle handle(::open("/dev/null", O_RDWR | O_CLOEXEC));
    disk_->open_[handle.get()] = entry;
    return handle;
  }

  std::shared_ptr<forgetful_disk> disk_;
};

}  // namespace keel_test
