// Where the time of a run goes, and a run that becomes slower.
#include "../support.hpp"

#include <chrono>
#include <keel/metrics/slowdown.hpp>
#include <nlohmann/json.hpp>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>
#include <thread>

using namespace keel_test;
using namespace keel::literals;

namespace {

using std::chrono::milliseconds;

struct evaluates : keel::recipe<keel::evaluation::every<4_steps>, keel::checkpoint::every<4_steps>> {};
struct accumulates : keel::recipe<keel::accumulate<2>> {};

std::vector<nlohmann::json> lines_of(std::filesystem::path const& run) {
  std::vector<nlohmann::json> all;
  for (std::string const& line : read_lines(run / "metrics.jsonl")) all.push_back(nlohmann::json::parse(line));
  return all;
}

template <class Recipe, class Source, class LossOf>
void train(std::filesystem::path const& directory, std::int64_t updates, Source const& source, LossOf const& slow) {
  auto const model = make_small(1);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  keel::trainer<Recipe> run{model, optimizer, quiet({.run_directory = directory, .updates = updates})};
  if constexpr (keel::config_of<Recipe>.evaluation.kind != keel::evaluation::kind::none) {
    run.evaluate_on(std::vector<pair_batch>{make_pair_batch(1)}, [&](pair_batch const& batch) {
      std::this_thread::sleep_for(milliseconds(30));
      return mean_squared_error(model)(batch);
    });
  }
  auto const batches = [&](std::int64_t) {
    return ranges::views::iota(0, 10000) | ranges::views::transform([&](int number) {
             source(number);
             return make_pair_batch(static_cast<std::uint64_t>(number));
           });
  };
  run.fit(batches, [&](pair_batch const& batch) {
    slow();
    return mean_squared_error(model)(batch);
  });
}

keel::phase_times times_of(double data, double forward, double other = 0.0) {
  keel::phase_times times;
  times.spent[static_cast<std::size_t>(keel::run_phase::data)] = data;
  times.spent[static_cast<std::size_t>(keel::run_phase::forward)] = forward;
  times.total = data + forward + other;
  return times;
}

/// Says what the test sets.
struct set_clock : keel::time_source {
  static inline std::int64_t passed = 0;
  time_point now() const override { return time_point(milliseconds(passed)); }
};

}  // namespace

TEST_CASE("what is left out counts for no update, inside a phase and between two") {
  set_clock::passed = 100;
  set_clock const time;
  keel::phase_clock clock(time);
  clock.enter(keel::run_phase::data);
  set_clock::passed += 3;
  {
    keel::phase_clock::left_out const cost(clock);
    set_clock::passed += 1000;
  }
  set_clock::passed += 4;
  clock.stop();
  {
    keel::phase_clock::left_out const cost(clock);
    set_clock::passed += 500;
  }
  set_clock::passed += 2;
  auto const times = clock.take();
  CHECK(times.of(keel::run_phase::data) == 7.0);
  CHECK(times.total == 9.0);
  set_clock::passed += 5;
  CHECK(clock.take().total == 5.0);
}

TEST_CASE("the wait for data is found where the source sleeps, with accumulation too") {
  scratch_directory const directory;
  auto const sleeps = [](int) { std::this_thread::sleep_for(milliseconds(10)); };
  train<keel::recipe<>>(directory / "plain", 6, sleeps, [] {});
  train<accumulates>(directory / "accumulated", 6, sleeps, [] {});
  for (auto const& line : lines_of(directory / "plain")) {
    CAPTURE(line.dump());
    CHECK(line["time"]["data"].get<double>() >= 10.0);
    CHECK(line["time"]["total"].get<double>() >= line["time"]["data"].get<double>());
  }
  for (auto const& line : lines_of(directory / "accumulated")) CHECK(line["time"]["data"].get<double>() >= 20.0);
}

TEST_CASE("the forward pass is timed, and phases are no more than all time") {
  scratch_directory const directory;
  train<accumulates>(directory / "run", 5, [](int) {}, [] { std::this_thread::sleep_for(milliseconds(10)); });
  for (auto const& line : lines_of(directory / "run")) {
    CAPTURE(line.dump());
    auto const& time = line["time"];
    CHECK(time["forward"].get<double>() >= 20.0);
    double sum = 0.0;
    for (char const* const phase : {"data", "forward", "backward", "update", "saving", "evaluating"}) {
      CHECK(time[phase].get<double>() >= 0.0);
      sum += time[phase].get<double>();
    }
    CHECK(sum <= time["total"].get<double>() + 0.01);
    CHECK(time["data"].get<double>() < 10.0);
  }
}

TEST_CASE("an evaluation and a save count for the update after them, and have lines of their kind") {
  scratch_directory const directory;
  train<evaluates>(directory / "run", 9, [](int) {}, [] {});
  int updates = 0;
  int evaluations = 0;
  for (auto const& line : lines_of(directory / "run")) {
    if (line.contains("evaluated")) {
      ++evaluations;
      CHECK(line["update"] == 4 * evaluations);
      CHECK(line["values"].contains("loss"));
      CHECK(line["ms"].get<double>() >= 30.0);
      continue;
    }
    ++updates;
    bool const follows = updates == 5 || updates == 9;
    CHECK((line["time"]["evaluating"].get<double>() >= 30.0) == follows);
    if (!follows) CHECK(line["time"]["saving"].get<double>() < 30.0);
  }
  CHECK(updates == 9);
  CHECK(evaluations == 2);
}

TEST_CASE("a lasting slowdown is found with its phase, once, and jitter is not") {
  using keel::run_phase;
  struct tried {
    char const* name;
    keel::phase_times after;
    std::optional<run_phase> phase;
  };
  for (auto const& one : {tried{"data", times_of(40.0, 50.0), run_phase::data}, tried{"forward", times_of(1.0, 99.0), run_phase::forward},
                          tried{"none", times_of(1.0, 50.0, 45.0), std::nullopt}}) {
    CAPTURE(one.name);
    keel::slowdown_watch watch;
    int found = 0;
    for (int n = 0; n < 400; ++n) {
      bool const slow = n >= 200;
      // A single update that takes ten times as long says nothing.
      auto const times = n % 37 == 0 ? times_of(1.0, 500.0) : slow ? one.after : times_of(1.0, 50.0);
      if (auto const slowdown = watch.add(times, 100)) {
        ++found;
        CHECK(slow);
        CHECK(n < 240);
        CHECK(slowdown->phase == one.phase);
        CHECK(slowdown->now > 1.5 * slowdown->before);
      }
    }
    CHECK(found == 1);
  }
}

TEST_CASE("neither longer batches nor small updates count as a slowdown") {
  keel::slowdown_watch longer;
  keel::slowdown_watch small;
  for (int n = 0; n < 400; ++n) {
    CHECK(!longer.add(times_of(1.0, n < 200 ? 50.0 : 150.0), n < 200 ? 100 : 300));
    CHECK(!small.add(times_of(0.1, n < 200 ? 1.0 : 4.0), 100));
  }
}

TEST_CASE("a run whose source becomes slow says so, and where, and ends where the recipe binds it") {
  scratch_directory const directory;
  struct stops : keel::recipe<keel::health::watch<keel::health::then<keel::health::slows_down, keel::health::stop>>> {};
  milliseconds const unit(is_sanitized ? 10 : 1);
  train<stops>(directory / "run", 300, [unit](int number) { std::this_thread::sleep_for(unit * (number < 80 ? 1 : 12)); }, [] {});
  std::string found;
  for (std::string const& line : read_lines(directory / "run/events.jsonl")) {
    auto const event = nlohmann::json::parse(line);
    if (event["event"] == "slowdown") found += event["phase"].get<std::string>() + " ";
    if (event["event"] == "alarm" || event["event"] == "stopped") found += event["event"].get<std::string>() + " ";
  }
  CHECK(found == "data alarm stopped ");
}

TEST_CASE("console.log has what the console says, with times, also where there is none") {
  scratch_directory const directory;
  train<evaluates>(directory / "run", 4, [](int) {}, [] {});
  std::string all;
  for (std::string const& line : read_lines(directory / "run/console.log")) {
    CHECK(line.substr(0, 2) == "20");
    CHECK(line[10] == ' ');
    CHECK(line[19] == ' ');
    all += line.substr(20) + "\n";
  }
  for (char const* const wanted : {"update 1/4  loss ", "update 4/4  loss ", "evaluated at update 4: loss ", "  run                    finished"}) {
    CAPTURE(wanted, all);
    CHECK(all.find(wanted) != std::string::npos);
  }
}
