// Going back to a checkpoint for real.
#include "../support.hpp"

#include <keel/data/shuffled_batches.hpp>
#include <keel/trainer/rollback.hpp>

using namespace keel_test;
using namespace keel::literals;

namespace {

namespace nonfinite = keel::nonfinite;

template <class Policy, class Saves = keel::checkpoint::every<4_steps, keel::checkpoint::keep<3>>>
struct goes_back : keel::recipe<Policy, Saves, keel::determinism::seeded<3>, keel::incident::off> {
};  // the loss counts its calls

struct result {
  std::vector<at::Tensor> parameters;
  std::vector<std::string> metrics;
  std::vector<std::int64_t> rows;  ///< the first row of each batch that was taken
  std::vector<std::string> told;
  std::int64_t updates = 0;
  std::int64_t rollbacks = 0;
  double learning_rate = 0.0;
  std::string error;
};

/// `bad(position)` says which of the batches, counted over the run's data, carry a NaN. Stops after so many windows of this call.
template <class Recipe, class Bad>
result go(std::filesystem::path const& directory, Bad const& bad, std::int64_t length = 20, int stop_after = 1 << 20,
          std::int64_t gap = 0, std::filesystem::path const& resume_from = {}) {
  keel::seed<Recipe>();
  auto const model = std::make_shared<small_module>(0.3);
  torch::optim::AdamW optimizer(model->parameters(), 0.02);
  result found;
  {
    keel::trainer<Recipe> run{model, optimizer,
                              quiet({.run_directory = directory, .updates = length, .resume_from = resume_from})};
    int windows = 0;
    run.on([&](keel::event::update_end const&) {
      if (++windows == stop_after) run.request_stop();
    });
    run.on([&](keel::event::rolled_back const& e) {
      found.told.push_back(std::to_string(e.from) + " to " + std::to_string(e.to) + ", " + keel::to_string(e.change));
    });
    // Row numbers that rise by one over all epochs: batch i of epoch e is 10 e + i.
    auto const batches = [gap](std::int64_t epoch) {
      return ranges::views::iota(10 * epoch, 10 * epoch + 10) |
             ranges::views::transform([gap](std::int64_t i) { return keel::row_numbers{i < 8 ? i : i + gap}; });
    };
    auto const loss_of = [&](keel::row_numbers const& rows) {
      found.rows.push_back(rows[0]);
      at::Tensor const loss = mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(rows[0])));
      return bad(run, rows[0]) ? loss * NAN : loss;
    };
    keel::outcome const ended = run.fit(batches, loss_of);
    if (ended.gave_up()) found.error = ended.gave_up()->detail;
    found.updates = run.updates();
    found.rollbacks = run.rollbacks();
    found.learning_rate = run.learning_rate();
  }
  found.parameters = copies_of(model->parameters());
  found.metrics = read_lines(directory / "metrics.jsonl");
  return found;
}

auto const batches_11_to_13 = [](auto&, std::int64_t row) { return row >= 11 && row <= 13; };

}  // namespace

TEST_CASE(
    "rollback_skips_the_data: the run goes back to the newest checkpoint from before the fault, leaves the bad data out and "
    "goes on") {
  using recipe = goes_back<nonfinite::rollback<3>>;
  scratch_directory const directory;
  auto const found = go<recipe>(directory / "run", batches_11_to_13);
  CHECK(found.error.empty());
  CHECK(found.updates == 20);
  CHECK(found.rollbacks == 1);
  // Windows 0 to 10 were good, 11 to 13 bad; the checkpoint of 8 is older than the row of three.
  CHECK(found.told == std::vector<std::string>{"11 to 8, data skipped"});
  std::vector<std::int64_t> expected;
  for (std::int64_t row = 0; row < 26; ++row) expected.push_back(row);
  CHECK(found.rows == expected);
  // Update 12 and on are those of a run that went from 8 straight to row 14.
  scratch_directory const straight;
  auto const gap = go<keel::recipe<keel::checkpoint::every<4_steps>, keel::determinism::seeded<3>>>(
      straight / "run", [](auto&, std::int64_t) { return false; }, 20, 1 << 20, 6);
  CHECK(same_bits(found.parameters, gap.parameters));
}

TEST_CASE("a run that began with another run's checkpoint rolls back to a checkpoint of its directory") {
  using recipe = goes_back<nonfinite::rollback<3>>;
  scratch_directory const directory;
  go<recipe>(directory / "first", [](auto&, std::int64_t) { return false; }, 8);
  std::filesystem::path const begins_with = directory / "first/checkpoints/step-000000004";
  // Before it has saved by its cadence, and after.
  for (std::int64_t const from : {5, 11}) {
    std::filesystem::path const own = directory / ("from" + std::to_string(from));
    auto const found =
        go<recipe>(own, [from](auto&, std::int64_t row) { return row >= from && row < from + 3; }, 20, 1 << 20, 0, begins_with);
    CHECK(found.error.empty());
    CHECK(found.updates == 20);
    CHECK(found.told == std::vector<std::string>{std::to_string(from) + (from == 5 ? " to 4" : " to 8") + ", data skipped"});
  }
  // Where the other run is gone it goes back all the same.
  auto const own = directory / "alone";
  auto const bad = [&](auto& run, std::int64_t row) {
    if (run.updates() == 5) std::filesystem::remove_all(directory / "first");
    return row >= 11 && row < 14;
  };
  auto const found = go<recipe>(own, bad, 20, 1 << 20, 0, begins_with);
  CHECK(found.error.empty());
  CHECK(found.told == std::vector<std::string>{"11 to 8, data skipped"});
}

TEST_CASE("rollback_marks_the_record: metrics.jsonl and events.jsonl say which updates were abandoned") {
  scratch_directory const directory;
  auto const found = go<goes_back<nonfinite::rollback<3>>>(directory / "run", batches_11_to_13);
  std::vector<nlohmann::json> lines;
  for (auto const& line : found.metrics) lines.push_back(nlohmann::json::parse(line));
  REQUIRE(lines.size() == 27);
  std::map<std::int64_t, double> kept;
  int marks = 0;
  for (auto const& line : lines) {
    if (line.contains("rolled_back")) {
      ++marks;
      CHECK(line["rolled_back"] == 1);
      CHECK(line["update"] == 8);
      CHECK(line["abandoned"] == 3);
      std::erase_if(kept, [&](auto const& item) { return item.first > line["update"]; });
    } else if (!line.contains("skipped_because")) {
      kept[line["update"]] = line["loss"];
    }
  }
  CHECK(marks == 1);
  CHECK(kept.size() == 20);
  std::string const events = read_file(directory / "run/events.jsonl");
  CHECK(events.find("\"event\":\"rolled_back\",\"update\":11") != std::string::npos);
  CHECK(events.find("\"change\":\"data skipped\"") != std::string::npos);
}

TEST_CASE("rollback_lowers_the_rate: the data comes again at half of every rate, which is part of the checkpoint") {
  using recipe = goes_back<nonfinite::rollback<2, nonfinite::lower_lr>>;
  scratch_directory const directory;
  // The fault is the rate's.
  auto const bad = [](auto& run, std::int64_t row) { return row >= 9 && run.learning_rate() > 0.015; };
  auto const found = go<recipe>(directory / "run", bad);
  CHECK(found.error.empty());
  CHECK(found.told == std::vector<std::string>{"9 to 8, learning rate halved"});
  CHECK(found.learning_rate == 0.01);
  std::vector<std::int64_t> expected{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 8};
  for (std::int64_t row = 9; row < 20; ++row) expected.push_back(row);
  CHECK(found.rows == expected);
  // A resume keeps the lowered rate, and finds the program's own as it was.
  auto const longer = go<recipe>(directory / "run", bad, 24);
  CHECK(longer.error.empty());
  CHECK(longer.learning_rate == 0.01);
}

TEST_CASE("rollback_reseeds: the data comes again, and dropout draws other numbers") {
  using recipe = goes_back<nonfinite::rollback<2, nonfinite::reseed>>;
  scratch_directory const directory;
  auto const bad = [](auto& run, std::int64_t row) { return row >= 9 && row <= 10 && run.rollbacks() == 0; };
  auto const found = go<recipe>(directory / "run", bad);
  scratch_directory const without;
  auto const never = go<recipe>(without / "run", [](auto&, std::int64_t) { return false; });
  CHECK(found.error.empty());
  CHECK(found.updates == 20);
  CHECK_FALSE(same_bits(found.parameters, never.parameters));
}

TEST_CASE("rollback_ends: after its attempts the run gives up and says what it tried, and the checkpoints are whole") {
  using recipe = goes_back<nonfinite::rollback<2, nonfinite::attempts<2>>>;
  scratch_directory const directory;
  auto const found = go<recipe>(directory / "run", [](auto&, std::int64_t row) { return row >= 9; });
  CHECK(found.rollbacks == 2);
  CHECK(found.error.find("[E08]") == 0);
  CHECK(found.error.find("rolled back 2 times") != std::string::npos);
  // The second time to an older one, because the first led here.
  CHECK(found.error.find("from update 9 to 8, from 8 to 4") != std::string::npos);
  keel::checkpoint_store store(directory / "run/checkpoints");
  REQUIRE(!store.updates().empty());
  for (std::int64_t const update : store.updates()) CHECK_NOTHROW(store.load(update));
}

TEST_CASE("a run goes back to its beginning where nothing else is old enough") {
  scratch_directory const directory;
  auto const found =
      go<goes_back<nonfinite::rollback<2>>>(directory / "run", [](auto&, std::int64_t row) { return row == 1 || row == 2; });
  CHECK(found.error.empty());
  CHECK(found.told == std::vector<std::string>{"1 to 0, data skipped"});
  CHECK(found.updates == 20);
}

TEST_CASE(
    "killed_around_a_rollback: stopped after every window, the run ends with the bits and the record of one that was not") {
  auto const check = []<class Recipe>(Recipe*, auto const& bad) {
    scratch_directory const whole;
    auto const expected = go<Recipe>(whole / "run", bad);
    CHECK(expected.error.empty());
    CHECK(expected.rollbacks == 1);
    scratch_directory const directory;
    result last;
    for (int i = 0; i < 40; ++i) last = go<Recipe>(directory / "run", bad, 20, 1);
    CHECK(last.updates == 20);
    CHECK(last.rollbacks == 1);
    CHECK(same_bits(last.parameters, expected.parameters));
    auto const timeless = [](std::vector<std::string> lines) {
      for (auto& line : lines) line = line.substr(0, line.find("\"ms\":"));
      return lines;
    };
    CHECK(timeless(last.metrics) == timeless(expected.metrics));
  };
  check(static_cast<goes_back<nonfinite::rollback<3>>*>(nullptr), batches_11_to_13);
  check(static_cast<goes_back<nonfinite::rollback<2, nonfinite::lower_lr>>*>(nullptr),
        [](auto& run, std::int64_t row) { return row >= 9 && run.learning_rate() > 0.015; });
  check(static_cast<goes_back<nonfinite::rollback<2, nonfinite::reseed>,
                              keel::checkpoint::every<4_steps, keel::checkpoint::asynchronous>>*>(nullptr),
        [](auto& run, std::int64_t row) { return row >= 9 && row <= 10 && run.rollbacks() == 0; });
}

TEST_CASE("a spike rolls back behind its window and skips the data") {
  struct recipe
      : keel::recipe<keel::spike::rollback<keel::spike::zscore<8.0>, keel::spike::window<8>, keel::spike::in_a_row<2>>,
                     keel::checkpoint::every<4_steps, keel::checkpoint::keep<4>>, keel::determinism::seeded<3>> {};
  scratch_directory const directory;
  keel::seed<recipe>();
  auto const model = std::make_shared<small_module>(0.0);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 30})};
  std::vector<std::string> told;
  run.on([&](keel::event::rolled_back const& e) { told.push_back(std::to_string(e.from) + " to " + std::to_string(e.to)); });
  std::vector<std::int64_t> taken;
  auto const batches = [](std::int64_t epoch) {
    return ranges::views::iota(100 * epoch, 100 * epoch + 100) |
           ranges::views::transform([](std::int64_t i) { return keel::row_numbers{i}; });
  };
  run.fit(batches, [&](keel::row_numbers const& rows) {
    taken.push_back(rows[0]);
    at::Tensor const loss = mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(rows[0])));
    return rows[0] == 20 || rows[0] == 21 ? loss * 1000.0 : loss;
  });
  // Ten windows before the second spike: 12 is the newest checkpoint that is old enough.
  CHECK(told == std::vector<std::string>{"20 to 12"});
  CHECK(run.updates() == 30);
  std::vector<std::int64_t> expected;
  for (std::int64_t row = 0; row < 40; ++row) expected.push_back(row);
  CHECK(taken == expected);
}

TEST_CASE("a rollback finds a checkpoint from before the fault and not long before it, whatever the cadence of the saves keeps") {
  struct recipe : keel::recipe<keel::spike::rollback<keel::spike::zscore<8.0>, keel::spike::window<8>, keel::spike::in_a_row<2>>,
                               keel::checkpoint::every<1_epochs, keel::checkpoint::keep<1>>, keel::determinism::seeded<3>> {};
  // In batches; each spike comes 100 updates into the run, with saves each 1, 3 and 25 updates.
  for (std::int64_t const epoch_length : {1, 3, 25}) {
    scratch_directory const directory;
    keel::seed<recipe>();
    auto const model = std::make_shared<small_module>(0.0);
    torch::optim::SGD optimizer(model->parameters(), 0.01);
    keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 110})};
    std::vector<std::int64_t> went_to;
    run.on([&](keel::event::rolled_back const& e) { went_to.push_back(e.to); });
    auto const batches = [&](std::int64_t epoch) {
      return ranges::views::iota(epoch_length * epoch, epoch_length * (epoch + 1)) |
             ranges::views::transform([](std::int64_t i) { return keel::row_numbers{i}; });
    };
    run.fit(batches, [&](keel::row_numbers const& rows) {
      at::Tensor const loss = mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(rows[0])));
      return rows[0] == 100 || rows[0] == 101 ? loss * 1000.0 : loss;
    });
    CAPTURE(epoch_length);
    REQUIRE(went_to.size() == 1);
    CHECK(went_to.front() <= 92);
    CHECK(went_to.front() >= 92 - 2 * 10 - epoch_length);
    CHECK(run.updates() == 110);
  }
}

TEST_CASE("a rollback passes over a damaged checkpoint, and a checkpoint that would not be finite is a reason to go back") {
  scratch_directory const directory;
  struct recipe : goes_back<nonfinite::rollback<3>> {};
  keel::seed<recipe>();
  auto const model = std::make_shared<small_module>(0.3);
  torch::optim::AdamW optimizer(model->parameters(), 0.02);
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 20})};
  std::vector<std::string> told;
  run.on([&](keel::event::rolled_back const& e) {
    told.push_back(std::to_string(e.from) + " to " + std::to_string(e.to) + ": " + e.why);
  });
  run.on([&](keel::event::update_end const& e) {
    if (e.update != 11 || run.rollbacks() > 0) return;
    write_file(directory / "run/checkpoints/step-000000008/state.json", "{}");
    at::NoGradGuard const no_grad;
    model->first->bias[0] = NAN;
  });
  run.fit([](std::int64_t epoch) { return std::vector<pair_batch>(10, make_pair_batch(static_cast<std::uint64_t>(epoch))); },
          mean_squared_error(model));
  REQUIRE(told.size() == 1);
  CHECK(told[0].find("11 to 4: ") == 0);
  CHECK(run.updates() == 20);
  CHECK(read_file(directory / "run/events.jsonl").find("\"damaged\"") != std::string::npos);
}
