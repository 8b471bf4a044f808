// keel doctor's checks find what is slow or wrong, and leave nothing behind.
#include <chrono>
#include <thread>

#include <keel/diagnose/machine_check.hpp>

#include "../support.hpp"

using namespace keel_test;
using keel::detail::machine_verdict;
namespace fs = std::filesystem;

namespace {

/// A disk that changes a byte, or that takes long to synchronize, or is full.
class faulty_disk : public keel::file_system {
 public:
  enum class fault : unsigned char { none, flips, is_slow, is_full };
  explicit faulty_disk(fault what) : what_(what) {}
  std::string read(path const& name, std::uint64_t most) override {
    std::string content = file_system::read(name, most);
    if (what_ == fault::flips) content[content.size() / 2] ^= 1;
    return content;
  }
  void sync(keel::file_handle const& file, path const& name) override {
    file_system::sync(file, name);
    if (what_ == fault::is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(120));
  }
  void write(keel::file_handle const& file, path const& name, char const* bytes, std::size_t count) override {
    if (what_ == fault::is_full) throw keel::file_error("E02", "cannot write " + name.string() + ": No space left on device.");
    file_system::write(file, name, bytes, count);
  }

 private:
  fault what_;
};

machine_verdict verdict_of_disk(faulty_disk::fault what) {
  scratch_directory const directory;
  faulty_disk disk(what);
  auto const found = keel::detail::check_disk(disk, directory);
  INFO(found.measured);
  CHECK(fs::is_empty(directory.path()));
  CHECK((found.verdict == machine_verdict::ok) == found.advice.empty());
  return found.verdict;
}

}  // namespace

TEST_CASE("a disk that returns other bytes is wrong, and one that synchronizes slowly is slow") {
  CHECK(verdict_of_disk(faulty_disk::fault::flips) == machine_verdict::wrong);
  CHECK(verdict_of_disk(faulty_disk::fault::is_slow) == machine_verdict::slow);
  CHECK(verdict_of_disk(faulty_disk::fault::none) != machine_verdict::wrong);
}

TEST_CASE("a directory that cannot be written is an error with its name, and nothing stays behind") {
  scratch_directory const directory;
  faulty_disk full(faulty_disk::fault::is_full);
  CHECK_THROWS_WITH(keel::detail::check_disk(full, directory), Catch::Matchers::Contains("No space left on device"));
  CHECK(fs::is_empty(directory.path()));
  std::ofstream(directory / "file") << "x";
  CHECK_THROWS_AS(keel::detail::check_disk(keel::real_files(), directory / "file"), keel::file_error);
}

TEST_CASE("threads are slow where there are more than cores, where one is used and all cores are faster, and where more take longer") {
  auto const verdict = [](int threads, int cores, double one, double all, bool is_launched = false) {
    return keel::detail::judge_threads({threads, cores, one, all}, is_launched).verdict;
  };
  CHECK(verdict(4, 4, 4.0, 1.0) == machine_verdict::ok);
  CHECK(verdict(1, 1, 1.0, 1.0) == machine_verdict::ok);
  CHECK(verdict(8, 4, 4.0, 1.0) == machine_verdict::slow);
  CHECK(verdict(1, 4, 3.0, 1.0) == machine_verdict::slow);
  CHECK(verdict(1, 4, 3.0, 1.0, true) == machine_verdict::ok);
  // One core with several hardware threads.
  CHECK(verdict(1, 2, 1.0, 1.1) == machine_verdict::ok);
  CHECK(verdict(4, 4, 1.0, 2.0) == machine_verdict::slow);
}

TEST_CASE("a link is wrong by its results first, and slow by its latency or its bandwidth") {
  auto const verdict = [](double seconds, double bytes_per_second, bool is_right) {
    auto const found = keel::detail::judge_link({seconds, bytes_per_second, is_right}, 4, "of this launch");
    CHECK(found.measured.find("4 ranks of this launch") == 0);
    return found.verdict;
  };
  CHECK(verdict(50e-6, 1e9, true) == machine_verdict::ok);
  CHECK(verdict(50e-6, 1e9, false) == machine_verdict::wrong);
  CHECK(verdict(20e-3, 1e9, true) == machine_verdict::slow);
  CHECK(verdict(50e-6, 1e7, true) == machine_verdict::slow);
}

TEST_CASE("products, copies and collectives of this machine have the right results, and threads are restored") {
  int const threads = at::get_num_threads();
  CHECK(keel::detail::check_matrix_product().verdict != machine_verdict::wrong);
  CHECK(keel::detail::check_threads(false).measured.find(std::to_string(threads) + " of LibTorch, on ") == 0);
  CHECK(at::get_num_threads() == threads);
  CHECK(keel::detail::check_memory().measured.find("GB/s") != std::string::npos);
  for (int const ranks : {2, 3}) {
    auto const found = keel::detail::check_local_ranks(ranks);
    INFO(keel::detail::describe({found}));
    CHECK(found.verdict != machine_verdict::wrong);
  }
  for (auto const& one : keel::detail::check_devices()) CHECK(one.verdict != machine_verdict::wrong);
  CHECK(keel::detail::is_sound({{"devices", machine_verdict::absent, ""}, {"disk", machine_verdict::ok, ""}}));
  CHECK_FALSE(keel::detail::is_sound({{"disk", machine_verdict::slow, "", "advice"}}));
}
