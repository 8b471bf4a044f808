// Lines of several updates: reduced from all of them, the same after a kill, and with the units that metrics have in their types.
#include "../support.hpp"

#include <cmath>
#include <keel/data/shuffled_batches.hpp>
#include <keel/metrics/run_metric.hpp>
#include <keel/metrics/update_interval.hpp>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>

#include "event_reader.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct saves_often : keel::recipe<keel::checkpoint::every<4_steps, keel::checkpoint::keep<3>>, keel::nonfinite::skip<10>> {};

template <class Recipe>
void train(keel::trainer_options options, std::set<std::int64_t> const& bad = {}, std::int64_t kill_at = 0, std::int64_t stop_at = 0) {
  auto const model = make_small(2);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  keel::trainer<Recipe> run{model, optimizer, options};
  std::int64_t seen = 0;
  run.on([&](keel::event::update_end const& e) {
    run.log(keel::metric<keel::reduce::sum, keel::units::bytes>("sum").reduced(keel::world_of_one{}, static_cast<double>(e.update)));
    run.log(keel::metric<keel::reduce::max>("max").reduced(keel::world_of_one{}, static_cast<double>(e.update)));
    if (e.update % 2 == 0) run.log(keel::metric<keel::reduce::mean>("mean").reduced(keel::world_of_one{}, static_cast<double>(e.update)));
    if (++seen == kill_at) throw std::runtime_error("killed");
    if (seen == stop_at) run.request_stop();
  });
  auto const batches = [](std::int64_t epoch) {
    return ranges::views::iota(100 * epoch, 100 * epoch + 100) |
           ranges::views::transform([](std::int64_t number) { return keel::row_numbers{number}; });
  };
  run.fit(batches, [&](keel::row_numbers const& rows) {
    at::Tensor const loss = mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(rows[0])));
    return bad.count(rows[0]) != 0 ? loss * NAN : loss;
  });
}

std::vector<nlohmann::json> lines_of(std::filesystem::path const& run) {
  std::vector<nlohmann::json> all;
  for (std::string const& line : read_lines(run / "metrics.jsonl")) all.push_back(nlohmann::json::parse(line));
  return all;
}

}  // namespace

TEST_CASE("a line of an interval is reduced from the lines of its updates") {
  scratch_directory const directory;
  std::set<std::int64_t> const bad{6, 7, 20};
  train<saves_often>(quiet({.run_directory = directory / "each", .updates = 23}), bad);
  train<saves_often>(quiet({.run_directory = directory / "four", .updates = 23, .record_every = 4}), bad);
  auto const each = lines_of(directory / "each");
  auto const four = lines_of(directory / "four");
  REQUIRE(each.size() == 26);
  REQUIRE(four.size() == 7);
  std::size_t next = 0;
  for (auto const& line : four) {
    std::size_t const count = std::min<std::size_t>(4, each.size() - next);
    CHECK(line.value("updates", 1) == static_cast<int>(count));
    double loss = 0, norm = 0, tokens = 0, farthest = 0, sum = 0;
    std::int64_t applied = 0;
    for (std::size_t i = next; i < next + count; ++i) {
      tokens += each[i]["tokens"].get<double>();
      sum += each[i]["own"]["sum"].get<double>();
      if (each[i]["loss_zscore"].is_number()) farthest = std::max(farthest, std::abs(each[i]["loss_zscore"].get<double>()));
      if (each[i].contains("skipped_because")) continue;
      ++applied;
      loss += each[i]["loss"].get<double>();
      norm += each[i]["gradient_norm"].get<double>();
    }
    auto const& last = each[next + count - 1];
    if (count > 1) CHECK(line["applied"] == applied);
    CHECK(line["loss"].get<double>() == Approx(loss / static_cast<double>(applied)));
    CHECK(line["gradient_norm"].get<double>() == Approx(norm / static_cast<double>(applied)));
    CHECK(line["tokens"].get<double>() == tokens);
    CHECK(line["own"]["sum"].get<double>() == sum);
    CHECK(line["own"]["max"] == last["own"]["max"]);
    if (line["loss_zscore"].is_number()) CHECK(std::abs(line["loss_zscore"].get<double>()) == farthest);
    for (char const* const key : {"update", "attempt", "epoch", "lr", "loss_scale", "skipped"}) CHECK(line[key] == last[key]);
    next += count;
  }
  CHECK(next == each.size());
}

TEST_CASE("a run with an interval that an exception ends anywhere, and that is resumed, ends with the lines of one that was not, and so does TensorBoard") {
  scratch_directory const directory;
  std::set<std::int64_t> const bad{9};
  train<saves_often>(quiet({.run_directory = directory / "whole", .updates = 22, .record_every = 5}), bad);
  auto const whole = timeless_metrics(directory / "whole");
  for (std::int64_t kill = 1; kill <= 22; ++kill) {
    auto const run = directory / ("killed-" + std::to_string(kill));
    CHECK_THROWS(train<saves_often>(quiet({.run_directory = run, .updates = 22, .record_every = 5}), bad, kill));
    train<saves_often>(quiet({.run_directory = run, .updates = 22, .record_every = 5}), bad);
    INFO("killed at " << kill);
    CHECK(timeless_metrics(run) == whole);
  }
  CHECK(board_in(directory / "killed-13/tensorboard").scalars.at("train/loss") ==
        board_in(directory / "whole/tensorboard").scalars.at("train/loss"));
}

TEST_CASE("a run with an interval that is stopped anywhere, or started again when it is finished, ends with the lines of one that was not") {
  scratch_directory const directory;
  train<saves_often>(quiet({.run_directory = directory / "whole", .updates = 22, .record_every = 5}));
  auto const whole = timeless_metrics(directory / "whole");
  auto const board = board_in(directory / "whole/tensorboard").scalars.at("train/loss");
  for (std::int64_t stop = 1; stop < 22; stop += 3) {
    auto const run = directory / ("stopped-" + std::to_string(stop));
    train<saves_often>(quiet({.run_directory = run, .updates = 22, .record_every = 5}), {}, 0, stop);
    CHECK(lines_of(run).back()["update"] == stop);
    train<saves_often>(quiet({.run_directory = run, .updates = 22, .record_every = 5}));
    INFO("stopped at " << stop);
    CHECK(timeless_metrics(run) == whole);
    CHECK(board_in(run / "tensorboard").scalars.at("train/loss") == board);
  }
  for (int again = 0; again < 2; ++again) {
    train<saves_often>(quiet({.run_directory = directory / "whole", .updates = 22, .record_every = 5}));
    CHECK(timeless_metrics(directory / "whole") == whole);
    CHECK(board_in(directory / "whole/tensorboard").scalars.at("train/loss") == board);
  }
}

TEST_CASE("a run that fails leaves the line of its open interval, and without checkpoints too") {
  struct plain : keel::recipe<> {};
  scratch_directory const directory;
  CHECK_THROWS(train<plain>(quiet({.run_directory = directory / "run", .updates = 22, .record_every = 100}), {}, 13));
  auto const lines = lines_of(directory / "run");
  REQUIRE(lines.size() == 1);
  CHECK(lines[0]["updates"] == 12);
}

TEST_CASE("around a rollback every attempt stands in one line, and those that stay count no update twice") {
  struct rolls_back : keel::recipe<keel::nonfinite::rollback<3>, keel::checkpoint::every<4_steps, keel::checkpoint::keep<3>>> {};
  for (std::int64_t const first_bad : {6, 8, 9, 11}) {
    for (std::int64_t const every : {1, 3, 5, 7}) {
      scratch_directory const directory;
      train<rolls_back>(quiet({.run_directory = directory / "run", .updates = 20, .record_every = every}), {first_bad, first_bad + 1, first_bad + 2});
      INFO("bad from " << first_bad << ", lines of " << every);
      std::vector<nlohmann::json> kept;
      int rollbacks = 0;
      for (auto const& line : lines_of(directory / "run")) {
        if (!line.contains("abandoned")) {
          kept.push_back(line);
          continue;
        }
        ++rollbacks;
        std::erase_if(kept, [&](auto const& one) { return one["update"] > line["update"] || one["attempt"] > line["kept_attempt"]; });
      }
      CHECK(rollbacks == 1);
      std::int64_t applied = 0;
      for (auto const& line : kept) applied += line.contains("applied") ? line["applied"].get<std::int64_t>() : line.contains("skipped_because") ? 0 : 1;
      CHECK(applied == 20);
      auto const board = board_in(directory / "run/tensorboard").scalars.at("train/loss");
      std::size_t with_loss = 0;
      for (auto const& line : kept) {
        if (line.value("applied", line.contains("skipped_because") ? 0 : 1) == 0) continue;
        ++with_loss;
        CHECK(board.at(line["update"].get<std::int64_t>()) == static_cast<float>(line["loss"].get<double>()));
      }
      CHECK(board.size() == with_loss);
    }
  }
}

TEST_CASE("an interval may change when a run is resumed") {
  scratch_directory const directory;
  CHECK_THROWS(train<saves_often>(quiet({.run_directory = directory / "run", .updates = 22, .record_every = 5}), {}, 11));
  train<saves_often>(quiet({.run_directory = directory / "run", .updates = 22, .record_every = 1}));
  auto const lines = lines_of(directory / "run");
  std::int64_t updates = 0;
  for (auto const& line : lines) updates += line.value("updates", 1);
  CHECK(updates == 22);
  CHECK(lines.back()["update"] == 22);
}

TEST_CASE("the values of an interval keep what a person must see: a NaN stays, and without an applied update there is no loss") {
  keel::update_interval interval;
  keel::metric<keel::reduce::max> const worst("worst");
  keel::metric<keel::reduce::min> const least("least");
  keel::metric<keel::reduce::mean, keel::units::one, keel::over_updates::last> const latest("latest");
  keel::update_metrics skipped;
  skipped.applied = 0;
  skipped.loss = std::nan("");
  skipped.skipped_because = "NaN";
  for (double const value : {1.0, std::nan(""), 3.0}) {
    CHECK_FALSE(interval.add(skipped, {worst.reduced(keel::world_of_one{}, value), least.reduced(keel::world_of_one{}, value), latest.reduced(keel::world_of_one{}, value)}, 4));
  }
  auto const line = interval.take();
  REQUIRE(line);
  CHECK(std::isnan(line->loss));
  CHECK(line->updates == 3);
  CHECK(line->applied == 0);
  CHECK(line->skipped_because == "NaN");
  CHECK(std::isnan(line->own.at(0).second));
  CHECK(std::isnan(line->own.at(1).second));
  CHECK(line->own.at(2).second == 3.0);
  CHECK_FALSE(interval.take());
  for (auto const& [name, value] : keel::named_values(*line)) CHECK(name != "train/loss");
}

TEST_CASE("every measured metric is reduced over updates as its type says, known or not in each of them, and across a checkpoint") {
  using over = keel::over_updates;
  struct known {
    double value, weight;
  };
  std::mt19937_64 engine(7);
  std::uniform_real_distribution<double> number(-1.0, 1.0);
  for (int round = 0; round < 200; ++round) {
    keel::update_interval interval;
    keel::measured_metrics<std::vector<known>> seen;
    int const updates = 2 + static_cast<int>(engine() % 6);
    std::optional<keel::update_metrics> line;
    for (int i = 0; i < updates; ++i) {
      keel::update_metrics one;
      one.attempt = one.update = i + 1;
      one.tokens = static_cast<std::int64_t>(1 + engine() % 100);
      one.milliseconds = 1.0 + number(engine);
      one.measured.for_each([&]<class Metric>(Metric metric, std::optional<double>& value) {
        if (engine() % 3 == 0) return;
        value = engine() % 20 == 0 ? std::nan("") : number(engine);
        bool const by_tokens = std::string(Metric::key) == "padding" || std::string(Metric::key) == "ignored_labels";
        double const weight = by_tokens ? static_cast<double>(one.tokens) : std::string(Metric::key) == "mfu" ? one.milliseconds : 1.0;
        seen[metric].push_back({*value, weight});
      });
      line = interval.add(one, {}, updates);
      if (i + 1 == updates || engine() % 2 == 0) continue;
      nlohmann::json object;
      keel::tensor_map tensors;
      keel::state_writer writer(object, tensors);
      interval.visit(writer);
      auto const saved = nlohmann::json::parse(object.dump());
      keel::state_reader reader(saved, tensors, "a test");
      interval = {};
      interval.visit(reader);
    }
    REQUIRE(line);
    line->measured.for_each([&]<class Metric>(Metric metric, std::optional<double> const& value) {
      INFO("round " << round << ", " << Metric::key);
      auto const& all = seen[metric];
      REQUIRE(value.has_value() == !all.empty());
      if (all.empty()) return;
      double sum = 0.0, weight = 0.0, farthest = 0.0;
      bool has_nan = false;
      for (known const& one : all) {
        sum += one.value * one.weight;
        weight += one.weight;
        if (!(std::abs(one.value) <= std::abs(farthest))) farthest = one.value;
        has_nan = has_nan || std::isnan(one.value);
      }
      double const wanted = Metric::over_updates == over::mean       ? sum / weight
                            : Metric::over_updates == over::farthest ? (has_nan ? std::nan("") : farthest)
                                                                     : all.back().value;
      if (std::isnan(wanted)) {
        REQUIRE(std::isnan(*value));
      } else {
        REQUIRE(*value == wanted);
      }
    });
  }
}

TEST_CASE("an interval of no update is rejected in words") {
  CHECK_THROWS_WITH(train<saves_often>(quiet({.run_directory = "unused", .updates = 2, .record_every = 0})), Catch::Contains("record_every"));
}

TEST_CASE("every metric of a run has a name, a unit, its reductions and its cost in its type, and sinks receive it") {
  static_assert(std::is_same_v<keel::metrics::loss::unit, keel::units::one>);
  static_assert(std::is_same_v<keel::metrics::tokens_per_second::over_ranks, keel::reduce::sum>);
  static_assert(keel::metrics::loss::cost == keel::reading_cost::with_the_update);
  static_assert(keel::metrics::max_allocated::over_updates == keel::over_updates::max);
  keel::update_metrics all;
  all.milliseconds = 1.0;
  all.memory.emplace();
  all.times.total = 1.0;
  all.measured.for_each([](auto, std::optional<double>& value) { value = 0.5; });
  keel::gpu_state gpu;
  gpu.memory_used = gpu.memory_total = gpu.temperature = gpu.utilization = 1.0;
  all.gpu = gpu;
  all.memory->is_on_gpu = true;
  auto const values = keel::named_values(all);
  CHECK(values.size() == 31);
}
