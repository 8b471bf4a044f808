// What stands under a name that keel reads, writes, cuts or removes may be a link, a pipe, a device or a huge file: what a link leads to
// stays as it was, and nothing waits or takes all memory.
#include "../support.hpp"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <keel/diagnose/compare_runs.hpp>
#include <keel/diagnose/report.hpp>
#include <keel/diagnose/triage.hpp>
#include <keel/json/load_config.hpp>
#include <keel/json/load_numbers.hpp>

using namespace keel_test;
using namespace keel::literals;

namespace fs = std::filesystem;

namespace {

void make_pipe(fs::path const& name) {
  fs::create_directories(name.parent_path());
  REQUIRE(::mkfifo(name.c_str(), 0644) == 0);
}

void make_huge(fs::path const& name) {
  fs::create_directories(name.parent_path());
  write_file(name, "");
  fs::resize_file(name, std::uintmax_t{1} << 40);
}

/// What file_error says where `run` throws one.
template <class Run>
std::string refusal(Run const& run) {
  try {
    run();
  } catch (keel::file_error const& thrown) {
    return thrown.what();
  }
  return "nothing was thrown";
}

struct saves : keel::recipe<keel::checkpoint::every<2_steps>> {};

void train(fs::path const& directory, std::int64_t updates) {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::trainer<saves> run{model, optimizer, quiet({.run_directory = directory, .updates = updates})};
  run.fit(std::vector{make_pair_batch(1)}, mean_squared_error(model));
}

}  // namespace

TEST_CASE("a file is never created, cut or added to through a link") {
  scratch_directory const directory;
  keel::file_system files;
  auto const link = directory / "link", target = directory / "target";
  write_file(target, "mine");
  fs::create_symlink(target, link);
  CHECK(refusal([&] { files.create(link); }).find("it is a symbolic link and not a regular file") != std::string::npos);
  CHECK(refusal([&] { files.create_new(link); }).find("cannot create") != std::string::npos);
  CHECK(refusal([&] { files.open_for_append(link); }).find("it is a symbolic link") != std::string::npos);
  CHECK(refusal([&] { files.truncate(link, 0); }).find("it is a symbolic link") != std::string::npos);
  CHECK(refusal([&] { files.try_lock(link); }).find("it is a symbolic link") != std::string::npos);
  CHECK(read_file(target) == "mine");
  fs::remove(target);
  CHECK(refusal([&] { files.create(link); }).find("it is a symbolic link") != std::string::npos);
  CHECK(!fs::exists(target));
}

TEST_CASE("what is not a regular file is neither read nor written, and nothing waits for it") {
  scratch_directory const directory;
  keel::file_system files;
  auto const pipe = directory / "pipe";
  make_pipe(pipe);
  for (auto const& name : {pipe, fs::path("/dev/zero")}) {
    INFO(name);
    std::string const words = "it is a pipe, a socket or a device and not a regular file. Remove it, or name another file.";
    CHECK(refusal([&] { files.read(name); }).find(words) != std::string::npos);
    CHECK(refusal([&] { files.open_for_read(name); }).find(words) != std::string::npos);
    CHECK(refusal([&] { files.create(name); }).find(words) != std::string::npos);
    CHECK(refusal([&] { files.open_for_append(name); }).find(words) != std::string::npos);
    CHECK(refusal([&] { files.truncate(name, 0); }).find(words) != std::string::npos);
    CHECK(refusal([&] { files.try_lock(name); }).find(words) != std::string::npos);
  }
  CHECK(refusal([&] { files.read(directory); }).find("Is a directory") != std::string::npos);
  make_huge(directory / "huge");
  CHECK(refusal([&] { files.read(directory / "huge"); }).find("it has more than 268435456 bytes") != std::string::npos);
}

TEST_CASE("a configuration and numbers are read from regular files alone") {
  scratch_directory const directory;
  make_pipe(directory / "pipe");
  for (auto const& name : {directory / "pipe", fs::path("/dev/zero")}) {
    CHECK(refusal([&] { keel::load_config(name); }).find("not a regular file") != std::string::npos);
    CHECK(refusal([&] { keel::load_numbers<saves>(name); }).find("not a regular file") != std::string::npos);
  }
  // A link is how a person names a file.
  write_file(directory / "written", "{}");
  fs::create_symlink(directory / "written", directory / "link");
  CHECK_NOTHROW(keel::read_config(directory / "link"));
}

TEST_CASE("links in a run directory cost no file that they lead to") {
  scratch_directory const directory;
  auto const run = directory / "run", target = directory / "target";
  std::string const text = "line 1\nline 2\nline 3\nline 4\nline 5\nline 6\nline 7\n";
  for (char const* const name :
       {"recipe.json.new", "metrics.jsonl", "events.jsonl", "layers.jsonl", "console.log", "lock", "summary.md"}) {
    INFO(name);
    fs::remove_all(run);
    fs::create_directories(run);
    write_file(target, text);
    fs::create_symlink(target, run / name);
    std::string const said = refusal([&] { train(run, 4); });
    CHECK(said.find("E01") == std::string::npos);
    CHECK(read_file(target) == text);
    // Behind a save, where a resume cuts records.
    fs::remove_all(run);
    train(run, 4);
    fs::remove(run / name);
    fs::create_symlink(target, run / name);
    refusal([&] { train(run, 8); });
    CHECK(read_file(target) == text);
  }
}

TEST_CASE("pipes and devices in a run directory end no process, and nothing waits for them") {
  scratch_directory const directory;
  auto const run = directory / "run";
  for (char const* const name :
       {"recipe.json.new", "metrics.jsonl", "events.jsonl", "layers.jsonl", "console.log", "lock", "recipe.json",
        "checkpoints/step-000000004/manifest.json", "checkpoints/step-000000004/state.json"}) {
    for (bool const is_device : {false, true}) {
      INFO(name << (is_device ? ", a device" : ", a pipe"));
      fs::remove_all(run);
      train(run, 4);
      REQUIRE(fs::exists(run / "checkpoints/step-000000004/manifest.json"));
      fs::remove(run / name);
      if (is_device) {
        fs::create_symlink("/dev/zero", run / name);
      } else {
        make_pipe(run / name);
      }
      // It goes on, or names the file; each read of the record names it, or leaves it out.
      try {
        train(run, 8);
      } catch (keel::error const& thrown) {
        CHECK(std::string(thrown.what()).find(fs::path(name).filename().string()) != std::string::npos);
      }
    }
  }
}

TEST_CASE("report, triage and compare wait for no pipe in a run directory") {
  scratch_directory const directory;
  auto const whole = directory / "whole", run = directory / "run";
  train(whole, 4);
  for (char const* const name :
       {"metrics.jsonl", "events.jsonl", "layers.jsonl", "recipe.json", "ranks/1.jsonl", "profiles/update-000000001/trace.json",
        "profiles/update-000000001/summary.md", "checkpoints/step-000000004/state.json"}) {
    INFO(name);
    fs::remove_all(run);
    fs::copy(whole, run, fs::copy_options::recursive);
    fs::remove(run / name);
    make_pipe(run / name);
    auto const is_of_the_file = [&](std::string const& said) {
      return said == "nothing was thrown" || said.find("not a regular file") != std::string::npos;
    };
    CHECK(is_of_the_file(refusal([&] { keel::report_page({keel::read_run_history(run)}); })));
    CHECK(is_of_the_file(refusal([&] { keel::triage(run); })));
    CHECK(is_of_the_file(refusal([&] { keel::compare_runs(run, whole); })));
  }
}

TEST_CASE("a limit on the size of files is an error in words, as a full disk is, and ends no process") {
  scratch_directory const directory;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit limited = before;
  limited.rlim_cur = 4096;
  keel::file_system files;
  std::string const text(20'000, 'x');
  std::string said;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limited) == 0);
  for (int i = 0; i < 2; ++i) {
    said = refusal([&] {
      auto const file = files.create(directory / "large");
      files.write(file, directory / "large", text.data(), text.size());
    });
  }
  std::string const of_run = refusal([&] { train(directory / "run", 4); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  CHECK(said.find("File too large. Raise the file size limit with ulimit -f") != std::string::npos);
  CHECK((of_run == "nothing was thrown" || of_run.find("File too large") != std::string::npos));
  sigset_t pending;
  ::sigpending(&pending);
  CHECK(::sigismember(&pending, SIGXFSZ) == 0);
}
