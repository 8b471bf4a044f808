// What a run's sinks get: TensorBoard by itself, and the program's own.
#include "../support.hpp"

#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <keel/data/shuffled_batches.hpp>
#include <mutex>
#include <nlohmann/json.hpp>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>
#include <sstream>
#include <thread>

#include "event_reader.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct saves_often : keel::recipe<keel::checkpoint::every<4_steps, keel::checkpoint::keep<3>>, keel::clip::global_norm<0.05>> {};
struct skips : keel::recipe<keel::nonfinite::skip<10>> {};
struct rolls_back : keel::recipe<keel::nonfinite::rollback<3>, keel::checkpoint::every<4_steps, keel::checkpoint::keep<3>>> {};

/// Trains on batches that rise by one. `bad`: batches with a NaN; `kill_after`: applied updates after which a hook throws.
template <class Recipe>
void train(keel::trainer_options options, std::set<std::int64_t> const& bad = {}, std::int64_t kill_after = 1 << 20) {
  auto const model = make_small(2);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  keel::trainer<Recipe> run{model, optimizer, options};
  run.on([&](keel::event::update_end const& e) {
    if (e.update == kill_after) throw std::runtime_error("killed");
  });
  auto const batches = [](std::int64_t epoch) {
    return ranges::views::iota(100 * epoch, 100 * epoch + 100) |
           ranges::views::transform([](std::int64_t number) { return keel::row_numbers{number}; });
  };
  run.fit(batches, [&](keel::row_numbers const& rows) {
    std::int64_t const number = rows[0];
    at::Tensor const loss = mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(number)));
    return bad.count(number) != 0 ? loss * NAN : loss;
  });
}

std::map<std::int64_t, double> losses_of(std::filesystem::path const& run) {
  std::map<std::int64_t, double> all;
  for (std::string const& line : read_lines(run / "metrics.jsonl")) {
    auto const read = nlohmann::json::parse(line);
    if (read.contains("abandoned")) {
      all.erase(all.upper_bound(read["update"]), all.end());
    } else if (!read.contains("skipped_because")) {
      all[read["update"]] = read["loss"];
    }
  }
  return all;
}

void check_same_losses(std::filesystem::path const& run) {
  auto const losses = losses_of(run);
  for (bool const honours_restarts : {true, false}) {
    auto const board = board_in(run / "tensorboard", honours_restarts);
    REQUIRE(board.scalars.at("train/loss").size() == losses.size());
    for (auto const& [update, loss] : losses) CHECK(board.scalars.at("train/loss").at(update) == static_cast<float>(loss));
  }
}

struct collecting_sink : keel::metric_sink {
  std::mutex mutex;
  std::map<std::string, std::map<std::int64_t, double>> values;
  std::string recipe;
  int flushes = 0;
  void scalars(std::int64_t update, std::span<keel::named_value const> all) override {
    std::lock_guard<std::mutex> const lock(mutex);
    for (auto const& [name, value] : all) values[name][update] = value;
  }
  void text(std::int64_t, std::string_view name, std::string_view words) override {
    if (name == "recipe") recipe = words;
  }
  void flush() override { ++flushes; }
};

struct broken_sink : keel::metric_sink {
  void scalars(std::int64_t, std::span<keel::named_value const>) override { throw std::runtime_error("the database is gone"); }
};

}  // namespace

TEST_CASE("TensorBoard shows the losses of metrics.jsonl, with the names of the README") {
  scratch_directory const directory;
  train<saves_often>(quiet({.run_directory = directory / "run", .updates = 9}));
  check_same_losses(directory / "run");
  auto const board = board_in(directory / "run/tensorboard");
  for (char const* const tag : {"train/grad_norm", "train/learning_rate", "train/epoch", "train/tokens_per_sec", "train/step_time_sec",
                                "stability/clip_fraction", "stability/skipped", "stability/loss_scale"}) {
    INFO(tag);
    REQUIRE(board.scalars.count(tag) == 1);
    CHECK(board.scalars.at(tag).size() == 9);
  }
  CHECK(board.scalars.at("stability/clip_fraction").at(1) == 1.0f);
  CHECK(board.texts.at("recipe").at(0).find("global_norm") != std::string::npos);
}

TEST_CASE("a skipped update leaves no loss in TensorBoard, and counts") {
  scratch_directory const directory;
  train<skips>(quiet({.run_directory = directory / "run", .updates = 6}), {2, 4});
  check_same_losses(directory / "run");
  CHECK(board_in(directory / "run/tensorboard").scalars.at("stability/skipped").at(6) == 2.0f);
}

TEST_CASE("after an exception and a resume TensorBoard shows one run without a gap") {
  scratch_directory const directory;
  for (std::int64_t const kill : {3, 4, 7, 10}) {
    CHECK_THROWS(train<saves_often>(quiet({.run_directory = directory / "run", .updates = 14}), {}, kill));
  }
  train<saves_often>(quiet({.run_directory = directory / "run", .updates = 14}));
  check_same_losses(directory / "run");
  auto const board = board_in(directory / "run/tensorboard");
  CHECK(board.scalars.at("train/loss").size() == 14);
  CHECK(board.files == 5);
}

// Run by the test below, as a process: KEEL_VICTIM names the directory, and the update after which it is killed.
TEST_CASE("a run that is killed", "[.victim]") {
  char const* const victim = std::getenv("KEEL_VICTIM");
  if (victim == nullptr) return;  // a filter that names the file selects hidden tests, too
  std::istringstream given(victim);
  std::string directory;
  std::int64_t update = 0;
  given >> update >> directory;
  auto const model = make_small(2);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  keel::trainer<saves_often> run{model, optimizer, quiet({.run_directory = directory, .updates = 14})};
  run.on([&](keel::event::update_end const& e) {
    if (e.update != update) return;
    // What the last save flushed is on its way; what came later goes with the process.
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    std::raise(SIGKILL);
  });
  std::vector<keel::row_numbers> batches;
  for (std::int64_t i = 0; i < 14; ++i) batches.push_back({i});
  run.fit(batches, [&](keel::row_numbers const& rows) {
    return mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(rows[0])));
  });
}

TEST_CASE("after SIGKILL and a resume event files read, and TensorBoard shows one run") {
  scratch_directory const directory;
  for (std::int64_t const kill : {6, 9, 11}) {
    ::setenv("KEEL_VICTIM", (std::to_string(kill) + " " + (directory / "run").string()).c_str(), 1);
    // The shell ends as its process did, with a signal's number above 128.
    int const ended = std::system("\"$(readlink /proc/$PPID/exe)\" 'a run that is killed' >/dev/null 2>&1; exit $?");
    CHECK(WEXITSTATUS(ended) == 128 + SIGKILL);
  }
  ::unsetenv("KEEL_VICTIM");
  train<saves_often>(quiet({.run_directory = directory / "run", .updates = 14}));
  check_same_losses(directory / "run");
  auto const board = board_in(directory / "run/tensorboard");
  CHECK(board.files == 4);
  CHECK(board.scalars.at("train/loss").size() == 14);
}

TEST_CASE("after a rollback TensorBoard shows the run as it is") {
  scratch_directory const directory;
  train<rolls_back>(quiet({.run_directory = directory / "run", .updates = 20}), {10, 11, 12});
  check_same_losses(directory / "run");
  CHECK(board_in(directory / "run/tensorboard").scalars.at("train/loss").size() == 20);
}

TEST_CASE("a run that begins where another one was shows nothing of that one") {
  scratch_directory const directory;
  struct plain : keel::recipe<> {};
  train<plain>(quiet({.run_directory = directory / "run", .updates = 9}));
  std::filesystem::remove(directory / "run/metrics.jsonl");
  train<plain>(quiet({.run_directory = directory / "run", .updates = 4}));
  CHECK(board_in(directory / "run/tensorboard").scalars.at("train/loss").size() == 4);
}

TEST_CASE("options.tensorboard = false writes no event file, and a run without a directory writes none") {
  scratch_directory const directory;
  train<skips>(quiet({.run_directory = directory / "run", .updates = 3, .tensorboard = false}));
  CHECK_FALSE(std::filesystem::exists(directory / "run/tensorboard"));
  train<skips>(quiet({.updates = 3}));
}

TEST_CASE("a sink of the program gets every value, the recipe and a flush, with and without a directory") {
  scratch_directory const directory;
  auto const sink = std::make_shared<collecting_sink>();
  train<saves_often>(quiet({.run_directory = directory / "run", .updates = 5, .sinks = {sink, nullptr}}));
  auto const losses = losses_of(directory / "run");
  CHECK(sink->values.at("train/loss") == losses);
  CHECK(sink->recipe.find("global_norm") != std::string::npos);
  CHECK(sink->flushes > 0);
  auto const alone = std::make_shared<collecting_sink>();
  train<skips>(quiet({.updates = 7, .sinks = {alone}}));
  CHECK(alone->values.at("train/loss").size() == 7);
  CHECK(alone->recipe.find("skip") != std::string::npos);
}

TEST_CASE("a broken sink is an event and not the end of the run, which ends with the same bits") {
  scratch_directory const directory;
  train<saves_often>(quiet({.run_directory = directory / "with", .updates = 8, .sinks = {std::make_shared<broken_sink>()}}));
  train<saves_often>(quiet({.run_directory = directory / "without", .updates = 8, .tensorboard = false}));
  CHECK(timeless_metrics(directory / "with") == timeless_metrics(directory / "without"));
  int said = 0;
  for (std::string const& line : read_lines(directory / "with/events.jsonl")) {
    if (line.find("sink_trouble") != std::string::npos) {
      ++said;
      CHECK(line.find("the sink options.sinks[0] fails: the database is gone") != std::string::npos);
    }
  }
  CHECK(said == 1);
}
