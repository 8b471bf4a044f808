// The run directory: who may use it, where it is, and what a weak file system takes away.
#include "../support.hpp"

#include <sys/stat.h>
#include <sys/wait.h>

#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>
#include <keel/trainer/run_directory.hpp>

using namespace keel_test;
using namespace keel::literals;

namespace fs = std::filesystem;

namespace {

struct saves : keel::recipe<keel::checkpoint::every<2_steps>> {};

auto const endless = [](std::int64_t) {
  return ranges::views::iota(1) | ranges::views::transform([](int i) { return make_pair_batch(static_cast<std::uint64_t>(i)); });
};

struct training {
  explicit training(fs::path const& directory, std::int64_t updates = 6, std::shared_ptr<keel::file_system> files = nullptr)
      : run(model, optimizer, quiet({.run_directory = directory, .updates = updates, .own_files = std::move(files)})) {}
  keel::outcome fit() { return run.fit(endless, mean_squared_error(model)); }
  std::shared_ptr<small_module> model = make_small();
  torch::optim::SGD optimizer{model->parameters(), 0.01};
  keel::trainer<saves> run;
};

/// A network file system without locks and without a sync of directories.
struct weak_files : keel::file_system {
  std::string sync_directory(path const& name) override { return "the entries of " + name.string() + " cannot be synced (test)"; }
  keel::lock_result try_lock(path const& name) override { return {keel::file_system::try_lock(name).handle, "no locks here"}; }
};

bool has_event(fs::path const& directory, std::string const& name) {
  return read_file(directory / "events.jsonl").find("\"event\":\"" + name + "\"") != std::string::npos;
}

}  // namespace

TEST_CASE("a relative run directory stays where the process stood when the trainer was built") {
  scratch_directory const directory;
  fs::path const before = fs::current_path();
  fs::current_path(directory.path());
  fs::create_directories("elsewhere");
  training one("run");
  fs::current_path("elsewhere");
  one.fit();
  fs::current_path(before);
  CHECK(keel::checkpoint_store(directory / "run/checkpoints").updates() == std::vector<std::int64_t>{4, 6});
  CHECK(read_lines(directory / "run/metrics.jsonl").size() == 6);
  CHECK_FALSE(fs::exists(directory / "elsewhere/run"));
}

TEST_CASE("a second run in the directory is rejected and learns which process has it") {
  scratch_directory const directory;
  training one(directory / "run");
  try {
    training two(directory / "run");
    FAIL("two runs in one directory");
  } catch (keel::file_error const& thrown) {
    CHECK(thrown.id() == "E01");
    CHECK(std::string(thrown.what()).find("(process " + std::to_string(::getpid()) + ")") != std::string::npos);
  }
}

TEST_CASE("where the file `lock` was removed and a second run began, the first one saves nothing more and says which process has it") {
  scratch_directory const directory;
  training one(directory / "run");
  std::unique_ptr<training> two;
  one.run.on([&](keel::event::update_end const& e) {
    if (e.update != 3) return;
    fs::remove(directory / "run/lock");
    two = std::make_unique<training>(directory / "run");
  });
  try {
    one.fit();
    FAIL("two runs in one directory");
  } catch (keel::file_error const& thrown) {
    CHECK(thrown.id() == "E01");
    CHECK(std::string(thrown.what()).find("process " + std::to_string(::getpid())) != std::string::npos);
  }
  CHECK(keel::checkpoint_store(directory / "run/checkpoints").updates() == std::vector<std::int64_t>{2});
}

TEST_CASE("a lock file that was removed is made again where no other run took the directory") {
  scratch_directory const directory;
  training one(directory / "run");
  one.run.on([&](keel::event::update_end const& e) {
    if (e.update == 3) fs::remove(directory / "run/lock");
  });
  one.fit();
  CHECK(has_event(directory / "run", "lock_retaken"));
  CHECK_THROWS_AS(training(directory / "run"), keel::file_error);
}

TEST_CASE("a file system without locks and without a sync of directories is taken, and the weaker promises are said once") {
  scratch_directory const directory;
  training one(directory / "run", 6, std::make_shared<weak_files>());
  one.fit();
  CHECK(keel::checkpoint_store(directory / "run/checkpoints").updates() == std::vector<std::int64_t>{4, 6});
  std::string const events = read_file(directory / "run/events.jsonl");
  CHECK(events.find("does not support locks (no locks here)") != std::string::npos);
  std::string const words = "the entries of " + (directory / "run/checkpoints").string() + " cannot be synced";
  auto const first = events.find(words);
  REQUIRE(first != std::string::npos);
  CHECK(events.find(words, first + 1) == std::string::npos);
}

TEST_CASE("a forked process does not hold its parent's lock") {
  scratch_directory const directory;
  keel::run_directory run(directory / "run", keel::real_files());
  CHECK_FALSE(run.require_lock());
  pid_t const child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    try {
      run.require_lock();
      ::_exit(1);
    } catch (keel::file_error const& thrown) {
      ::_exit(thrown.id() == "E01" ? 0 : 2);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK_FALSE(run.require_lock());
}

TEST_CASE("a file `lock` that another program wrote keeps its bytes") {
  scratch_directory const directory;
  fs::create_directories(directory / "run");
  write_file(directory / "run/lock", "mine");
  keel::run_directory const run(directory / "run", keel::real_files());
  CHECK(read_file(directory / "run/lock") == "mine");
}

TEST_CASE("a parent that may be entered and not read takes a run") {
  scratch_directory const directory;
  fs::create_directories(directory / "shared/run");
  ::chmod(directory.path().c_str(), 0711);
  ::chmod((directory / "shared").c_str(), 0711);
  ::chmod((directory / "shared/run").c_str(), 0777);
  pid_t const child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // Root reads every directory, and its owner this one.
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(2);
    if (::geteuid() != 65534) ::chmod((directory / "shared").c_str(), 0311);
    at::set_num_threads(1);
    try {
      training(directory / "shared/run").fit();
    } catch (std::exception const& thrown) {
      write_file(directory / "shared/run/thrown", thrown.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ::chmod((directory / "shared").c_str(), 0755);
  auto const thrown = read_file(directory / "shared/run/thrown");
  if (thrown.find("fork-based multiprocessing") != std::string::npos) {
    WARN("SKIPPED: where there is a GPU, LibTorch trains in no forked process");
    return;
  }
  CHECK(thrown == "");
  CHECK(status == 0);
  CHECK(has_event(directory / "shared/run", "weaker_promise"));
}

TEST_CASE("where checkpoints were moved away, the record of the run before is set aside and not cut") {
  scratch_directory const directory;
  training(directory / "run").fit();
  auto const record = read_lines(directory / "run/metrics.jsonl");
  REQUIRE(record.size() == 6);
  fs::rename(directory / "run/checkpoints", directory / "moved");
  training(directory / "run", 4).fit();
  CHECK(read_lines(directory / "run/abandoned-metrics.jsonl") == record);
  CHECK(read_lines(directory / "run/metrics.jsonl").size() == 4);
  CHECK(has_event(directory / "run", "record_set_aside"));
  fs::remove_all(directory / "run/checkpoints");
  training(directory / "run", 3).fit();
  CHECK(read_lines(directory / "run/abandoned-metrics.jsonl") == record);
  CHECK(read_lines(directory / "run/abandoned-metrics-2.jsonl").size() == 4);
}

TEST_CASE("a directory that cannot be written says the way out") {
  scratch_directory const directory;
  write_file(directory / "file", "");
  try {
    training(directory / "file/run");
    FAIL("a run below a file");
  } catch (keel::file_error const& thrown) {
    CHECK(thrown.id() == "E02");
    CHECK(std::string(thrown.what()).find((directory / "file/run").string()) != std::string::npos);
  }
}

TEST_CASE("a recipe without shard is rejected where a launcher started several processes") {
  using two_names = std::pair<char const*, char const*>;
  for (auto const& [name, rank] : {two_names("WORLD_SIZE", "RANK"), two_names("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
                                   two_names("PMI_SIZE", "PMI_RANK"), two_names("SLURM_STEP_NUM_TASKS", "SLURM_PROCID")}) {
    scratch_directory const directory;
    ::setenv(name, "1", 1);
    CHECK_NOTHROW(training(directory / "run"));
    ::setenv(name, "4", 1);
    CHECK_THROWS_AS(training(directory / "run"), keel::world_error);
    ::setenv(rank, "0", 1);
    try {
      training one(directory / "run");
      FAIL("four unconnected copies");
    } catch (keel::recipe_error const& thrown) {
      CHECK(thrown.id() == "W01");
    }
    ::setenv(name, "1", 1);
    CHECK_NOTHROW(training(directory / "run"));
    ::setenv(name, "many", 1);
    CHECK_THROWS_AS(training(directory / "run"), keel::world_error);
    ::unsetenv(name);
    ::unsetenv(rank);
  }
}
