// every_phase FOLDER [ONE_IN [SEED]]: SIGKILLs a small run at its N-th moment, N = 1, 2, 3 .., lets another process go on with it,
// and compares the end with a run that was never killed, byte by byte. With ONE_IN it takes that share of the moments, by chance. A moment is an event of the trainer or a call that changes a file:
// every phase of every update, of every save, and of a rollback. The process that goes on is killed as well, at another moment
// each time, and one run is killed after every update or few, again and again.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "small_run.hpp"

namespace {

namespace fs = std::filesystem;
namespace checkpoint = keel::checkpoint;
using namespace keel::literals;

std::atomic<int> moments{0};
int last_moment = 1 << 30;

void moment() {
  if (++moments == last_moment) ::kill(::getpid(), SIGKILL);
}

struct deadly_files : keel::file_system {
  void make_directories(path const& name) override { moment(), file_system::make_directories(name); }
  keel::file_handle create(path const& name) override { return moment(), file_system::create(name); }
  void write(keel::file_handle const& file, path const& name, char const* bytes, std::size_t count) override {
    // Half of it, then the kill.
    moment(), file_system::write(file, name, bytes, count / 2);
    moment(), file_system::write(file, name, bytes + count / 2, count - count / 2);
  }
  void sync(keel::file_handle const& file, path const& name) override { moment(), file_system::sync(file, name); }
  std::string sync_directory(path const& name) override { return moment(), file_system::sync_directory(name); }
  void rename(path const& from, path const& to) override { moment(), file_system::rename(from, to); }
  void remove_file(path const& name) override { moment(), file_system::remove_file(name); }
  bool remove_directory(path const& name) override { return moment(), file_system::remove_directory(name); }
  void truncate(path const& name, std::uint64_t size) override { moment(), file_system::truncate(name, size); }
};

constexpr std::int64_t updates = 15;

/// In a process of its own; true if it came to the run's end. `count`: how many moments there were.
template <class Saves, class Nonfinite>
bool train(fs::path const& directory, int die_at, int* count = nullptr) {
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) std::exit(2);
  pid_t const child = ::fork();
  if (child < 0) std::exit(2);
  if (child == 0) {
    at::set_num_threads(1);
    last_moment = die_at;
    try {
      soak::train<Saves, Nonfinite>(
          directory, updates, [](auto& run) { run.on([](auto const&) { moment(); }); }, [] {}, std::make_shared<deadly_files>());
    } catch (std::exception const& thrown) {
      std::fprintf(stderr, "killed at moment %d: %s\n", die_at, thrown.what());
      ::_exit(3);
    }
    int const all = moments;
    if (::write(pipe_ends[1], &all, sizeof all) != sizeof all) ::_exit(4);
    ::_exit(0);
  }
  ::close(pipe_ends[1]);
  int seen = 0;
  bool const told = ::read(pipe_ends[0], &seen, sizeof seen) == sizeof seen;
  ::close(pipe_ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  bool const as_meant = (WIFEXITED(status) && WEXITSTATUS(status) == 0) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  if (!as_meant) {
    std::fprintf(stderr, "a run of moment %d ended by itself, with status %d\n", die_at, status);
    std::exit(1);
  }
  if (told && count != nullptr) *count = seen;
  return told;
}

std::string content_of(fs::path const& name) {
  std::ifstream file(name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
/// Everything that must be equal: the last checkpoint, and the record without the clock's figures.
std::string image_of(fs::path const& directory) {
  std::string image;
  char last[32];
  std::snprintf(last, sizeof last, "step-%09lld", static_cast<long long>(updates));
  for (char const* const file : {"model.safetensors", "optimizer.safetensors", "state.safetensors", "state.json", "manifest.json"}) {
    image += content_of(directory / "checkpoints" / last / file);
  }
  std::ifstream metrics(directory / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) image += line.substr(0, line.find("\"ms\":")) + "\n";
  return image;
}

/// Which moments are tried.
struct sample {
  int one_in = 1;
  std::mt19937_64 chance{20261122};
  bool takes() { return chance() % static_cast<std::uint64_t>(one_in) == 0; }
};

template <class Saves, class Nonfinite = keel::nonfinite::skip<4>>
int kill_everywhere(fs::path const& folder, char const* name, sample& tried) {
  int moments_of_all = 0;
  fs::remove_all(folder);
  bool const ended = train<Saves, Nonfinite>(folder / "whole", 1 << 30, &moments_of_all);
  std::string const expected = image_of(folder / "whole");
  if (!ended || expected.size() < 10'000) {
    std::printf("%s: the run that nobody kills does not come to its end\n", name);
    return 1;
  }
  int chosen = 0;
  int kills = 0;
  int kills_of_resumes = 0;
  for (int at = 1; at <= moments_of_all; ++at) {
    if (!tried.takes()) continue;
    ++chosen;
    fs::path const directory = folder / "killed";
    fs::remove_all(directory);
    // Beside training a save may come earlier or later; a run that ends before its moment is no kill.
    if (train<Saves, Nonfinite>(directory, at)) continue;
    ++kills;
    // The second one is killed early on, where it loads, cuts the record and saves for the first time.
    if (!train<Saves, Nonfinite>(directory, 1 + at * 7 % 97)) ++kills_of_resumes;
    if (!train<Saves, Nonfinite>(directory, 1 << 30) || image_of(directory) != expected) {
      std::printf("%s: killed at moment %d of %d, the run did not come to the same end\n", name, at, moments_of_all);
      return 1;
    }
  }
  std::printf("%s: killed at %d of %d moments, and %d times again on the way back; parameters, moments, scaler, rate, random "
              "state, rows and record came out the same, byte by byte\n",
              name, kills, moments_of_all, kills_of_resumes);
  return kills > 10 && kills > chosen * 9 / 10 ? 0 : 1;
}

/// Kills one run after every update or few until it is at its end.
int kill_again_and_again(fs::path const& folder) {
  using often = checkpoint::every<1_steps, checkpoint::keep<2>>;
  using bears = keel::nonfinite::skip<4>;
  fs::remove_all(folder);
  int all = 0;
  train<often, bears>(folder / "whole", 1 << 30, &all);
  std::string const expected = image_of(folder / "whole");
  // What a start costs, and an update or a few with their saves.
  for (int const moments_each : {130, 160, 190, 220}) {
    fs::path const directory = folder / "killed";
    fs::remove_all(directory);
    int kills = 0;
    while (!train<often, bears>(directory, moments_each) && kills < 200) ++kills;
    // An epoch is three and a half updates.
    bool const enough = kills >= 4 && kills < 200;
    if (image_of(directory) != expected || !enough) {
      std::printf("killed every %d moments, %d times, the run did not come to the same end\n", moments_each, kills);
      return 1;
    }
    std::printf("killed %d times on the way, every %d moments: the same, byte by byte\n", kills, moments_each);
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  if (count < 2 || count > 4) return 2;
  using in_front = checkpoint::every<3_steps, checkpoint::keep<2>, checkpoint::keep_best, checkpoint::by_training_loss>;
  using beside = checkpoint::every<3_steps, checkpoint::keep<2>, checkpoint::asynchronous>;
  using going_back = checkpoint::every<3_steps, checkpoint::keep<3>>;
  fs::path const folder = words[1];
  sample tried;
  if (count > 2) tried.one_in = std::max(1, std::atoi(words[2]));
  if (count > 3) tried.chance.seed(static_cast<std::uint64_t>(std::atoll(words[3])));
  int const failed = kill_again_and_again(folder) +
                     kill_everywhere<going_back, keel::nonfinite::rollback<1>>(folder, "with two rollbacks", tried) +
                     kill_everywhere<in_front>(folder, "synchronous", tried) +
                     kill_everywhere<beside>(folder, "asynchronous", tried);
  fs::remove_all(folder);
  return failed;
}
