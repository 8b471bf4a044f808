// A save replaces a file as a whole, or leaves it as it was.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <keel/checkpoint/mapped_safetensors.hpp>
#include <keel/checkpoint/sharded_safetensors.hpp>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "safetensors_support.hpp"
#include <keel/core/replace_file.hpp>

using namespace safetensors_test;

namespace {

std::string text_of(std::filesystem::path const& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}
void put(std::filesystem::path const& path, std::string const& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

std::set<std::string> names_in(std::filesystem::path const& directory) {
  std::set<std::string> names;
  for (auto const& entry : std::filesystem::directory_iterator(directory)) names.insert(entry.path().filename().string());
  return names;
}

unsigned permissions_of(std::filesystem::path const& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}
std::uint64_t inode_of(std::filesystem::path const& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_ino;
}

/// The Nth call that changes something fails. With `half`, a write that fails leaves half of its bytes.
class failing_files : public keel::file_system {
 public:
  struct plan {
    int calls = 0;
    int fail_at = 0;  ///< 0: never
  };
  explicit failing_files(std::shared_ptr<plan> plan) : plan_(std::move(plan)) {}

  keel::file_handle create(path const& name) override { return next(name), file_system::create(name); }
  keel::file_handle create_in_place(path const& name) override { return next(name), file_system::create_in_place(name); }
  keel::file_handle create_new(path const& name) override { return next(name), file_system::create_new(name); }
  void write(keel::file_handle const& file, path const& name, char const* bytes, std::size_t count) override {
    if (plan_->calls + 1 == plan_->fail_at) file_system::write(file, name, bytes, count / 2);
    next(name);
    file_system::write(file, name, bytes, count);
  }
  void sync(keel::file_handle const& file, path const& name) override {
    next(name);
    file_system::sync(file, name);
  }
  std::string sync_directory(path const& name) override { return next(name), file_system::sync_directory(name); }
  void rename(path const& from, path const& to) override {
    next(from);
    file_system::rename(from, to);
  }
  void remove_file(path const& name) override {
    next(name);
    file_system::remove_file(name);
  }

 private:
  void next(path const& name) {
    if (++plan_->calls == plan_->fail_at) keel::detail::throw_file_error("do anything with", name, ENOSPC);
  }
  std::shared_ptr<plan> plan_;
};

/// As on a file system that knows no syncing of directories.
struct forgetful_directories : keel::file_system {
  std::string sync_directory(path const&) override { return "this directory cannot be synced"; }
};

void replace(keel::file_system& files, std::filesystem::path const& path, std::string const& text) {
  keel::detail::replace_file(files, path, [&](auto const& sink) {
    sink(text.data(), text.size() / 2);
    sink(text.data() + text.size() / 2, text.size() - text.size() / 2);
  });
}

keel::tensor_map numbered(int count, double value) {
  keel::tensor_map tensors;
  for (int i = 0; i < count; ++i) tensors["layer." + std::to_string(i)] = at::full({10}, value + i);
  return tensors;
}
bool same_tensors(keel::tensor_map const& a, keel::tensor_map const& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](auto const& one) {
           return b.contains(one.first) && same_bits(one.second, b.at(one.first));
         });
}

}  // namespace

TEST_CASE("saving over a mapped file leaves the mapped tensors as they were, whether small or large") {
  temporary_folder const folder;
  auto const path = folder.path / "model.safetensors";
  for (std::int64_t const elements : {3, 3'000'000}) {
    auto const older = at::arange(elements, at::kFloat);
    keel::save_safetensors(path, {{"x", older}});
    auto const mapped = keel::map_safetensors(path).tensors.at("x");
    keel::save_safetensors(path, {{"x", older + 1}});
    CHECK(at::equal(mapped, older));
    CHECK(at::equal(keel::load_safetensors(path).tensors.at("x"), older + 1));
    // What is mapped can be saved over its file.
    keel::save_safetensors(path, {{"x", keel::map_safetensors(path).tensors.at("x")}, {"y", mapped}});
    CHECK(at::equal(keel::load_safetensors(path).tensors.at("x"), older + 1));
    CHECK(at::equal(keel::load_safetensors(path).tensors.at("y"), older));
    CHECK(names_in(folder.path) == std::set<std::string>{"model.safetensors"});
  }
}

TEST_CASE("saving a sharded set over files that are mapped leaves the mapped tensors as they were") {
  temporary_folder const folder;
  auto const tensors = numbered(4, 1.0);
  keel::save_sharded_safetensors(folder.path, "model", tensors, 40);
  std::vector<keel::safetensors_content> mapped;
  for (int i = 1; i <= 4; ++i)
    mapped.push_back(keel::map_safetensors(folder.path / ("model-0000" + std::to_string(i) + "-of-00004.safetensors")));
  keel::tensor_map all;
  for (auto const& content : mapped) all.insert(content.tensors.begin(), content.tensors.end());
  keel::save_sharded_safetensors(folder.path, "model", numbered(4, 2.0), 40);
  CHECK(same_tensors(all, tensors));
  CHECK(same_tensors(keel::load_sharded_safetensors(folder.path / "model.safetensors.index.json").tensors, numbered(4, 2.0)));
  keel::save_sharded_safetensors(folder.path, "model", all, 40);
  CHECK(same_tensors(keel::load_sharded_safetensors(folder.path / "model.safetensors.index.json").tensors, tensors));
}

TEST_CASE("a failure at any call leaves the older file as it was, or the new one whole, and nothing beside it") {
  temporary_folder const folder;
  auto const path = folder.path / "file";
  auto const plan = std::make_shared<failing_files::plan>();
  failing_files files(plan);
  put(path, "older");
  replace(files, path, "newer, and longer");
  int const calls = plan->calls;
  CHECK(calls == 6);  // create, write, write, sync, rename, sync the directory
  for (bool const there : {true, false}) {
    for (int at = 1; at <= calls; ++at) {
      INFO("call " << at);
      if (there) put(path, "older");
      if (!there) std::filesystem::remove(path);
      *plan = {0, at};
      CHECK_THROWS_AS(replace(files, path, "newer, and longer"), keel::file_error);
      bool const replaced = at == calls;
      CHECK(std::filesystem::exists(path) == (there || replaced));
      if (there || replaced) CHECK(text_of(path) == (replaced ? "newer, and longer" : "older"));
      CHECK(names_in(folder.path).size() == (there || replaced ? 1 : 0));
    }
  }
  *plan = {};
  put(path, "older");
  struct stop {};
  CHECK_THROWS_AS(keel::detail::replace_file(files, path,
                                             [](auto const& sink) {
                                               sink("half", 4);
                                               throw stop();
                                             }),
                  stop);
  CHECK(text_of(path) == "older");
  CHECK(names_in(folder.path) == std::set<std::string>{"file"});
}

TEST_CASE("a directory that cannot be synced fails no save") {
  temporary_folder const folder;
  forgetful_directories files;
  replace(files, folder.path / "file", "text");
  CHECK(text_of(folder.path / "file") == "text");
  keel::save_sharded_safetensors(folder.path, "model", numbered(3, 1.0), 40, {}, files);
  keel::save_sharded_safetensors(folder.path, "model", numbered(3, 2.0), 40, {}, files);
  CHECK(same_tensors(keel::load_sharded_safetensors(folder.path / "model.safetensors.index.json").tensors, numbered(3, 2.0)));
}

TEST_CASE("saving through a symbolic link replaces the file that it leads to, and the link stays") {
  temporary_folder const folder;
  auto const& root = folder.path;
  std::filesystem::create_directories(root / "blobs");
  std::filesystem::create_directories(root / "names");
  std::filesystem::create_symlink("../blobs/one", root / "names" / "first");
  std::filesystem::create_symlink(root / "names" / "first", root / "names" / "second");
  keel::file_system files;
  // The first save goes through links to a file that is not there yet.
  for (std::string const text : {"older", "newer"}) {
    replace(files, root / "names" / "second", text);
    CHECK(std::filesystem::is_symlink(root / "names" / "first"));
    CHECK(std::filesystem::is_symlink(root / "names" / "second"));
    CHECK(std::filesystem::symlink_status(root / "blobs" / "one").type() == std::filesystem::file_type::regular);
    CHECK(text_of(root / "blobs" / "one") == text);
  }
  CHECK(names_in(root / "blobs") == std::set<std::string>{"one"});
  CHECK(names_in(root / "names") == std::set<std::string>{"first", "second"});
  std::filesystem::create_symlink("circle", root / "circle");
  CHECK_THROWS_AS(replace(files, root / "circle", "text"), keel::file_error);
  std::filesystem::create_symlink("none/file", root / "dangling");
  CHECK_THROWS_AS(replace(files, root / "dangling", "text"), keel::file_error);
  CHECK_THROWS_AS(replace(files, root / "blobs", "text"), keel::file_error);
}

TEST_CASE("a pipe is written in place") {
  temporary_folder const folder;
  auto const path = folder.path / "pipe";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  auto const tensors = small_checkpoint();
  std::string read;
  {
    std::jthread const reader([&] { read = text_of(path); });
    keel::save_safetensors(path, tensors);
  }
  CHECK(read == written(tensors));
  CHECK(std::filesystem::is_fifo(path));
  CHECK(names_in(folder.path) == std::set<std::string>{"pipe"});
}

TEST_CASE("what a descriptor of the process stands for, as /dev/stdout does, is written in place") {
  if (!std::filesystem::exists("/proc/self/fd")) return;
  temporary_folder const folder;
  auto const path = folder.path / "output";
  put(path, "older");
  auto const inode = inode_of(path);
  keel::file_handle const file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  auto const through = "/proc/self/fd/" + std::to_string(file.get());
  std::filesystem::create_symlink(through, folder.path / "link");
  for (auto const& name : {std::filesystem::path(through), folder.path / "link"}) {
    keel::save_safetensors(name, small_checkpoint());
    CHECK(text_of(path) == written(small_checkpoint()));
    CHECK(inode_of(path) == inode);
    put(path, "older");
  }
}

TEST_CASE("permissions of a replaced file are kept, and those of a new one follow the umask") {
  temporary_folder const folder;
  auto const path = folder.path / "model.safetensors";
  auto const before = ::umask(027);
  keel::save_safetensors(path, small_checkpoint());
  ::umask(before);
  CHECK(permissions_of(path) == 0640);
  for (unsigned const bits : {0600u, 0666u, 0444u, 0755u}) {
    REQUIRE(::chmod(path.c_str(), bits) == 0);
    auto const inode = inode_of(path);
    keel::save_safetensors(path, small_checkpoint());
    CHECK(permissions_of(path) == bits);
    CHECK(inode_of(path) != inode);
  }
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  // Nor may others read it while it is on its way.
  keel::file_system files;
  keel::detail::replace_file(files, path, [&](auto const&) {
    for (auto const& entry : std::filesystem::directory_iterator(folder.path)) CHECK(permissions_of(entry.path()) == 0600);
  });
}

TEST_CASE("root leaves a replaced file to its owner") {
  temporary_folder const folder;
  auto const path = folder.path / "model.safetensors";
  keel::save_safetensors(path, small_checkpoint());
  if (::geteuid() != 0 || ::chown(path.c_str(), 12'345, 54'321) != 0) return;
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  keel::save_safetensors(path, small_checkpoint());
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK(status.st_uid == 12'345);
  CHECK(status.st_gid == 54'321);
  CHECK(permissions_of(path) == 0640);
}

TEST_CASE("a file with the longest name is replaced, and names that a killed process left behind are passed over") {
  temporary_folder const folder;
  auto const path = folder.path / std::string(255, 'n');
  keel::file_system files;
  std::string beside;
  keel::detail::replace_file(files, path, [&](auto const& sink) {
    sink("text", 4);
    for (auto const& name : names_in(folder.path)) beside = name;
  });
  CHECK(text_of(path) == "text");
  std::string const begin = ".keel-save-" + std::to_string(::getpid()) + "-";
  REQUIRE(beside.starts_with(begin));
  int const number = std::stoi(beside.substr(begin.size()));
  for (int i = 1; i <= 3; ++i) put(folder.path / (begin + std::to_string(number + i) + ".tmp"), "left behind");
  replace(files, path, "again");
  CHECK(text_of(path) == "again");
  CHECK(names_in(folder.path).size() == 4);
  for (int i = 1; i <= 3; ++i) CHECK(text_of(folder.path / (begin + std::to_string(number + i) + ".tmp")) == "left behind");
}

TEST_CASE("a failure at any call of a sharded save leaves the older set with its index, or no index, or all of the new set") {
  auto const older = numbered(4, 1.0);
  struct change {
    keel::tensor_map newer;
    std::uint64_t most;
  };
  // The same number of files, another, and one file alone.
  for (auto const& [newer, most] :
       std::vector<change>{{numbered(4, 100.0), 80}, {numbered(5, 100.0), 80}, {numbered(2, 100.0), 80}}) {
    auto const plan = std::make_shared<failing_files::plan>();
    auto const state_after = [&](int fail_at) {
      temporary_folder const folder;
      keel::save_sharded_safetensors(folder.path, "model", older, 80);
      *plan = {0, fail_at};
      bool failed = false;
      try {
        failing_files files(plan);
        keel::save_sharded_safetensors(folder.path, "model", newer, most, {}, files);
      } catch (keel::file_error const&) {
        failed = true;
      }
      CHECK(failed == (fail_at > 0));
      for (auto const& name : names_in(folder.path)) CHECK(name.starts_with("model"));
      auto const index = folder.path / "model.safetensors.index.json";
      auto const alone = folder.path / "model.safetensors";
      if (!std::filesystem::exists(index)) {
        if (!std::filesystem::exists(alone)) return std::string("none");
        return std::string(same_tensors(keel::load_safetensors(alone).tensors, newer) ? "newer" : "a mixture");
      }
      auto const held = keel::load_sharded_safetensors(index).tensors;
      return std::string(same_tensors(held, older) ? "older" : same_tensors(held, newer) ? "newer" : "a mixture");
    };
    REQUIRE(state_after(0) == "newer");
    int const calls = plan->calls;
    CHECK(calls > 8);
    std::map<std::string, int> states;
    std::string sequence;
    for (int at = 1; at <= calls; ++at) {
      INFO("call " << at << " of " << calls);
      auto const state = state_after(at);
      CHECK((state == "older" || state == "none" || state == "newer"));
      ++states[state];
      sequence += state[0];
    }
    INFO(sequence);
    CHECK(states["older"] > 0);
    CHECK(states["none"] > 0);
    CHECK(states["newer"] == 1);  // the last sync of the directory
    CHECK(std::is_sorted(sequence.begin(), sequence.end(), [](char a, char b) {
      std::string const order = "on";  // older, then none or newer
      return order.find(a) < order.find(b);
    }));
  }
}

TEST_CASE("a tensor that cannot be saved leaves an older sharded set as it was") {
  temporary_folder const folder;
  keel::save_sharded_safetensors(folder.path, "model", numbered(6, 1.0), 80);
  auto const before = names_in(folder.path);
  auto bad = numbered(6, 2.0);
  bad["layer.5"] = at::Tensor();
  CHECK_THROWS_AS(keel::save_sharded_safetensors(folder.path, "model", bad, 80), keel::data_error);
  CHECK(names_in(folder.path) == before);
  CHECK(same_tensors(keel::load_sharded_safetensors(folder.path / "model.safetensors.index.json").tensors, numbered(6, 1.0)));
}

TEST_CASE("a directory in the place of the index is named and stays") {
  temporary_folder const folder;
  auto const index = folder.path / "model.safetensors.index.json";
  std::filesystem::create_directories(index / "inner");
  put(index / "inner" / "file", "precious");
  for (std::uint64_t const most : {40u, 100'000u}) {
    try {
      keel::save_sharded_safetensors(folder.path, "model", numbered(3, 1.0), most);
      FAIL_CHECK("accepted");
    } catch (keel::error const& thrown) {
      CHECK(thrown.id() == "E12");
      CHECK(std::string(thrown.what()).find(index.string()) != std::string::npos);
    }
    CHECK(text_of(index / "inner" / "file") == "precious");
    CHECK(names_in(folder.path).size() == 1);
  }
}

TEST_CASE("a name that is a path or not UTF-8 is rejected before anything is written") {
  temporary_folder const folder;
  std::filesystem::create_directories(folder.path / "a");
  for (std::string const stem : {"a/model", "/model", "mod\xffl"}) {
    try {
      keel::save_sharded_safetensors(folder.path, stem, numbered(3, 1.0), 40);
      FAIL_CHECK("accepted " << stem);
    } catch (keel::error const& thrown) {
      CHECK(thrown.id() == "E12");
    }
    CHECK(names_in(folder.path) == std::set<std::string>{"a"});
  }
}

TEST_CASE("one file in the place of a set removes the link to its index, and not what that leads to") {
  temporary_folder const folder;
  std::filesystem::create_directories(folder.path / "blobs");
  put(folder.path / "blobs" / "index", "{}");
  std::filesystem::create_symlink("blobs/index", folder.path / "model.safetensors.index.json");
  keel::save_sharded_safetensors(folder.path, "model", numbered(3, 1.0), 1 << 20);
  CHECK_FALSE(std::filesystem::is_symlink(folder.path / "model.safetensors.index.json"));
  CHECK(std::filesystem::exists(folder.path / "blobs" / "index"));
  CHECK(same_tensors(keel::load_safetensors(folder.path / "model.safetensors").tensors, numbered(3, 1.0)));
}

TEST_CASE("an index that is a symbolic link is replaced where it leads") {
  temporary_folder const folder;
  std::filesystem::create_directories(folder.path / "blobs");
  put(folder.path / "blobs" / "index", "{}");
  std::filesystem::create_symlink("blobs/index", folder.path / "model.safetensors.index.json");
  keel::save_sharded_safetensors(folder.path, "model", numbered(3, 1.0), 40);
  CHECK(std::filesystem::is_symlink(folder.path / "model.safetensors.index.json"));
  CHECK(same_tensors(keel::load_sharded_safetensors(folder.path / "model.safetensors.index.json").tensors, numbered(3, 1.0)));
}
