// The order of the data as a function of seed, epoch and position.
#include "../support.hpp"

#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/samplers/sequential.h>
#include <torch/data/transforms/stack.h>
#include <torch/serialize.h>

#include <algorithm>
#include <cmath>
#include <keel/data/libtorch_sampler.hpp>
#include <keel/data/shuffled_batches.hpp>
#include <limits>
#include <map>
#include <set>
#include <sstream>

using namespace keel_test;
using namespace keel::literals;

TEST_CASE("an order is a permutation for every number of rows, and another one for every seed and epoch") {
  for (std::int64_t rows = 1; rows <= 130; ++rows) {
    keel::shuffled_batches const order{{.rows = rows, .batch = 7, .seed = 3}};
    std::set<std::int64_t> seen;
    for (auto const& batch : order(rows % 5)) seen.insert(batch.begin(), batch.end());
    REQUIRE(seen.size() == static_cast<std::size_t>(rows));
    REQUIRE(*seen.begin() == 0);
    REQUIRE(*seen.rbegin() == rows - 1);
  }
  std::set<keel::row_numbers> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (std::int64_t epoch = 0; epoch < 20; ++epoch)
      orders.insert(keel::shuffled_batches{{.rows = 50, .batch = 50, .seed = seed}}.batch(epoch, 0));
  }
  CHECK(orders.size() == 400);
}

TEST_CASE("every row comes to every place equally often: chi-square over 40,000 epochs") {
  constexpr int rows = 9;
  constexpr int epochs = 40'000;
  keel::shuffled_batches const order{{.rows = rows, .batch = rows, .seed = 11}};
  std::vector<double> counts(rows * rows);
  std::vector<double> neighbours(rows * rows);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    auto const batch = order.batch(epoch, 0);
    for (int place = 0; place < rows; ++place) ++counts[static_cast<std::size_t>(place * rows + batch[static_cast<std::size_t>(place)])];
    for (int place = 0; place + 1 < rows; ++place)
      ++neighbours[static_cast<std::size_t>(batch[static_cast<std::size_t>(place)] * rows + batch[static_cast<std::size_t>(place) + 1])];
  }
  auto const chi_square = [](std::vector<double> const& found, double expected, bool without_diagonal) {
    double sum = 0.0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (without_diagonal && i / rows == i % rows) continue;
      sum += (found[i] - expected) * (found[i] - expected) / expected;
    }
    return sum;
  };
  // Five standard deviations above the mean of 64 and of 71 degrees of freedom.
  CHECK(chi_square(counts, epochs / 9.0, false) < 64 + 5 * std::sqrt(128.0));
  CHECK(chi_square(neighbours, epochs * 8.0 / 72.0, true) < 71 + 5 * std::sqrt(142.0));
}

namespace {

bool is_odd(keel::row_numbers const& order) {
  int inversions = 0;
  for (std::size_t i = 0; i < order.size(); ++i)
    for (std::size_t j = i + 1; j < order.size(); ++j) inversions += order[i] > order[j] ? 1 : 0;
  return inversions % 2 == 1;
}

}  // namespace

TEST_CASE("all orders of two to six rows occur, and equally often: chi-square over 60,000 epochs") {
  double orders = 1.0;
  for (std::int64_t rows = 2; rows <= 6; ++rows) {
    orders *= static_cast<double>(rows);
    CAPTURE(rows);
    constexpr int epochs = 60'000;
    keel::shuffled_batches const order{{.rows = rows, .batch = rows, .seed = 11}};
    std::map<keel::row_numbers, int> counts;
    int odd = 0;
    for (int epoch = 0; epoch < epochs; ++epoch) {
      auto const batch = order.batch(epoch, 0);
      ++counts[batch];
      odd += is_odd(batch) ? 1 : 0;
    }
    CHECK(counts.size() == static_cast<std::size_t>(orders));
    // Five standard deviations: of a coin, and of as many degrees of freedom as there are orders but one.
    CHECK(std::abs(odd - epochs / 2) < 5 * std::sqrt(epochs / 4.0));
    double sum = 0.0;
    for (auto const& [one, count] : counts) sum += (count - epochs / orders) * (count - epochs / orders) / (epochs / orders);
    CHECK(sum < orders - 1 + 5 * std::sqrt(2 * (orders - 1)));
  }
}

TEST_CASE("odd orders of up to 64 rows come as often as even ones, also where a network would only know even ones") {
  for (std::int64_t const rows : {8, 15, 16, 17, 31, 63, 64}) {
    CAPTURE(rows);
    constexpr int epochs = 4000;
    keel::shuffled_batches const order{{.rows = rows, .batch = rows, .seed = 11}};
    int odd = 0;
    for (int epoch = 0; epoch < epochs; ++epoch) odd += is_odd(order.batch(epoch, 0)) ? 1 : 0;
    CHECK(std::abs(odd - epochs / 2) < 5 * std::sqrt(epochs / 4.0));
  }
}

TEST_CASE("orders that saved runs count in stay as they are") {
  using rows = keel::row_numbers;
  auto const order = [](std::int64_t size) { return keel::shuffled_batches{{.rows = size, .batch = 8, .seed = 7}}.batch(3, 0); };
  CHECK(order(3) == rows{2, 0, 1});
  CHECK(order(4) == rows{2, 0, 1, 3});
  CHECK(order(65) == rows{23, 44, 0, 26, 62, 43, 2, 28});
  CHECK(order(1'000'000) == rows{53734, 341330, 899041, 325267, 546418, 969573, 591668, 741516});
  // Version 2 of the order.
  CHECK(order(5) == rows{4, 3, 2, 1, 0});
  CHECK(order(64) == rows{43, 44, 48, 62, 16, 49, 33, 20});
}

TEST_CASE("an order says what decides it, and nothing that a run of an older keel with the same order did not say") {
  auto const words = [](keel::shuffle_settings const& settings) { return keel::shuffled_batches{settings}.describe(); };
  CHECK(words({.rows = 100, .batch = 8, .seed = 3}) == "100 rows in batches of 8, shuffled by seed 3");
  CHECK(words({.rows = 100, .batch = 8, .shuffle = false}) == "100 rows in batches of 8, in their own order");
  CHECK(words({.rows = 100, .batch = 8, .seed = 3, .drop_last = true}) ==
        "100 rows in batches of 8, shuffled by seed 3, without a last batch that is not full");
  // Nothing is left out.
  CHECK(words({.rows = 104, .batch = 8, .seed = 3, .drop_last = true}) == "104 rows in batches of 8, shuffled by seed 3");
  // Any number of ranks may go on.
  for (int const ranks : {1, 2, 4}) {
    CHECK(words({.rows = 100, .batch = 8 / ranks, .seed = 3, .rank = ranks - 1, .ranks = ranks}) ==
          "100 rows in batches of 8, shuffled by seed 3");
    CHECK(words({.rows = 100, .batch = 8 / ranks, .seed = 3, .drop_last = true, .ranks = ranks}) ==
          words({.rows = 100, .batch = 8, .seed = 3, .drop_last = true}));
  }
  // Another version than the one of older runs.
  CHECK(words({.rows = 4, .batch = 2, .seed = 3}) == "4 rows in batches of 2, shuffled by seed 3");
  CHECK(words({.rows = 5, .batch = 2, .seed = 3}) == "5 rows in batches of 2, shuffled by seed 3, version 2 of the order");
  CHECK(words({.rows = 64, .batch = 2, .seed = 3}) == "64 rows in batches of 2, shuffled by seed 3, version 2 of the order");
  CHECK(words({.rows = 65, .batch = 2, .seed = 3}) == "65 rows in batches of 2, shuffled by seed 3");
  CHECK(words({.rows = 64, .batch = 2, .shuffle = false}) == "64 rows in batches of 2, in their own order");
}

TEST_CASE("a batch that an epoch does not have is an error, not rows from elsewhere") {
  keel::shuffled_batches const order{{.rows = 10, .batch = 4, .drop_last = true}};
  CHECK(order.batch(0, 1).size() == 4);
  for (std::int64_t const position : {std::int64_t{-1}, std::int64_t{2}, std::numeric_limits<std::int64_t>::max()})
    CHECK_THROWS_AS(order.batch(0, position), keel::data_error);
}

TEST_CASE("ranks share one order: their batches together are those of one rank with the global batch") {
  for (int const ranks : {2, 3, 4}) {
    keel::shuffled_batches const one{{.rows = 100, .batch = 4 * ranks, .seed = 5, .drop_last = true}};
    for (std::int64_t position = 0; position < one.size(); ++position) {
      keel::row_numbers together;
      for (int rank = 0; rank < ranks; ++rank) {
        keel::shuffled_batches const mine{{.rows = 100, .batch = 4, .seed = 5, .rank = rank, .ranks = ranks}};
        REQUIRE(mine.size() == one.size());
        auto const rows = mine.batch(2, position);
        together.insert(together.end(), rows.begin(), rows.end());
      }
      REQUIRE(together == one.batch(2, position));
    }
  }
}

TEST_CASE("an order without sense, or of too few rows, is rejected in words") {
  CHECK_THROWS_AS((keel::shuffled_batches{{.rows = 10, .batch = 0}}), keel::error);
  CHECK_THROWS_AS((keel::shuffled_batches{{.rows = 10, .batch = 2, .rank = 2, .ranks = 2}}), keel::error);
  CHECK_THROWS_AS((keel::shuffled_batches{{.rows = 0, .batch = 2}}), keel::data_error);
  CHECK_THROWS_AS((keel::shuffled_batches{{.rows = 7, .batch = 4, .rank = 0, .ranks = 2}}), keel::data_error);
}

namespace {

struct recipe : keel::recipe<keel::checkpoint::every<1_steps, keel::checkpoint::keep<3>>, keel::accumulate<2>, keel::determinism::seeded<5>> {};
constexpr std::int64_t length = 14;

struct history {
  std::vector<at::Tensor> parameters;
  std::vector<std::int64_t> rows;  ///< in the order in which they were trained on
};

/// Six micro-batches an epoch, so that windows of two end with it, or five, so that they do not.
template <class MakeBatches>
history go(std::filesystem::path const& directory, MakeBatches const& make, int stop_after, std::vector<std::int64_t>& seen) {
  keel::seed<recipe>();
  auto const model = std::make_shared<small_module>(0.3);
  torch::optim::AdamW optimizer(model->parameters(), 0.05);
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory, .updates = length})};
  int windows = 0;
  run.on([&](keel::event::update_end const&) {
    if (++windows == stop_after) run.request_stop();
  });
  auto batches = make();
  run.fit(batches, [&](auto const& batch) {
    at::Tensor rows;
    if constexpr (requires { batch.data; }) {
      rows = batch.data;
    } else {
      rows = at::tensor(at::ArrayRef<std::int64_t>(batch)).to(at::kFloat).view({-1, 1}) / 100.0;
    }
    for (std::int64_t i = 0; i < rows.size(0); ++i) seen.push_back(std::lround(rows[i][0].template item<double>() * 100.0));
    return at::mse_loss(model->forward(rows.expand({-1, 6})), rows.sin());
  });
  return {copies_of(model->parameters()), seen};
}

template <class MakeBatches>
void killed_in_many_places(MakeBatches const& make) {
  scratch_directory const whole;
  std::vector<std::int64_t> seen;
  auto const expected = go(whole / "run", make, 1 << 20, seen);
  for (int const every : {1, 2, 3, 5}) {
    scratch_directory const directory;
    std::vector<std::int64_t> rows;
    history got;
    for (int i = 0; i < length; ++i) got = go(directory / "run", make, every, rows);
    CHECK(same_bits(got.parameters, expected.parameters));
    CHECK(got.rows == expected.rows);
  }
}

struct numbered : torch::data::datasets::Dataset<numbered> {
  torch::data::Example<> get(std::size_t index) override {
    at::Tensor const x = at::full({1}, static_cast<double>(index) / 100.0);
    return {x, x};
  }
  c10::optional<std::size_t> size() const override { return 41; }
};

}  // namespace

TEST_CASE("every_row_once_an_epoch: stopped after every one, two, three and five windows, rows and bits are those of one run") {
  for (std::int64_t const rows : {24, 20}) {
    killed_in_many_places([rows] {
      return keel::shuffled_batches{{.rows = rows, .batch = 4, .seed = 9}};
    });
    std::vector<std::int64_t> seen;
    scratch_directory const directory;
    go(directory / "run", [rows] { return keel::shuffled_batches{{.rows = rows, .batch = 4, .seed = 9}}; }, 1 << 20, seen);
    for (std::size_t epoch = 0; (epoch + 1) * static_cast<std::size_t>(rows) <= seen.size(); ++epoch) {
      auto const begin = seen.begin() + static_cast<std::ptrdiff_t>(epoch) * rows;
      CHECK(std::set<std::int64_t>(begin, begin + rows).size() == static_cast<std::size_t>(rows));
    }
  }
}

TEST_CASE("sampler_ahead_of_the_trainer: a loader whose workers fetch ahead goes on at what was consumed, and reads nothing twice") {
  killed_in_many_places([] {
    return [order = keel::shuffled_batches{{.rows = 41, .batch = 4, .seed = 2}}](std::int64_t epoch, std::int64_t position) {
      return torch::data::make_data_loader(numbered().map(torch::data::transforms::Stack<>()), keel::libtorch_sampler(order, epoch, position),
                                           torch::data::DataLoaderOptions(4).workers(2).max_jobs(6));
    };
  });
}

namespace {

/// A loader takes its sampler by value; this one can be saved while the loader goes on.
struct shared_sampler : torch::data::samplers::Sampler<> {
  explicit shared_sampler(std::shared_ptr<keel::libtorch_sampler> sampler) : one(std::move(sampler)) {}
  void reset(keel::libtorch::optional_size size = {}) override { one->reset(size); }
  keel::libtorch::optional_rows next(std::size_t batch_size) override { return one->next(batch_size); }
  void save(torch::serialize::OutputArchive& archive) const override { one->save(archive); }
  void load(torch::serialize::InputArchive& archive) override { one->load(archive); }
  std::shared_ptr<keel::libtorch_sampler> one;
};

auto loader_of(std::shared_ptr<keel::libtorch_sampler> sampler, std::size_t workers, std::size_t batch = 4) {
  auto options = torch::data::DataLoaderOptions(batch).workers(workers);
  // Without workers nothing would consume what is fetched ahead.
  if (workers > 0) options.max_jobs(3);
  return torch::data::make_data_loader(numbered().map(torch::data::transforms::Stack<>()), shared_sampler(std::move(sampler)),
                                       options);
}
keel::row_numbers rows_of(torch::data::Example<> const& batch) {
  keel::row_numbers rows;
  for (std::int64_t i = 0; i < batch.data.size(0); ++i) rows.push_back(std::lround(batch.data[i].item<double>() * 100.0));
  return rows;
}
keel::libtorch_sampler saved_and_loaded(keel::libtorch_sampler const& from, keel::libtorch_sampler into) {
  std::stringstream stream;
  torch::save(from, stream);
  torch::load(into, stream);
  return into;
}

}  // namespace

TEST_CASE("a sampler that is saved and loaded goes on behind what it handed out, in a loader without and with workers") {
  keel::shuffled_batches const order{{.rows = 41, .batch = 4, .seed = 2}};
  for (std::size_t const workers : {0, 2}) {
    auto const sampler = std::make_shared<keel::libtorch_sampler>(order, 5);
    std::vector<keel::row_numbers> seen;
    std::string saved;
    auto const loader = loader_of(sampler, workers);
    int consumed = 0;
    for (auto const& batch : *loader) {
      seen.push_back(rows_of(batch));
      if (++consumed != 2) continue;
      std::ostringstream stream;
      torch::save(*sampler, stream);
      saved = stream.str();
    }
    CHECK(seen.size() == 11);
    // Workers fetch ahead of what is consumed.
    std::int64_t const handed_out = workers == 0 ? 2 : 5;
    auto const loaded = std::make_shared<keel::libtorch_sampler>(order, 0);
    std::istringstream stream(saved);
    torch::load(*loaded, stream);
    std::vector<keel::row_numbers> rest;
    auto const second = loader_of(loaded, workers);
    for (auto const& batch : *second) rest.push_back(rows_of(batch));
    CHECK(rest == std::vector<keel::row_numbers>(seen.begin() + handed_out, seen.end()));
    for (std::int64_t at = 0; at < order.size(); ++at) CHECK(seen[static_cast<std::size_t>(at)] == order.batch(5, at));
  }
}

TEST_CASE("a sampler saved for another order, by another sampler, or at a place that is not there, is rejected: E04, E05") {
  keel::shuffled_batches const order{{.rows = 41, .batch = 4, .seed = 2}};
  keel::libtorch_sampler const saved(order, 1, 3);
  auto const rejection = [](auto const& call) -> std::string {
    try {
      call();
    } catch (keel::checkpoint_error const& thrown) {
      return thrown.what();
    }
    return "accepted";
  };
  CHECK(rejection([&] { saved_and_loaded(saved, {order, 0}); }) == "accepted");
  keel::shuffled_batches const other{{.rows = 41, .batch = 4, .seed = 3}};
  auto const words = rejection([&] { saved_and_loaded(saved, {other, 0}); });
  CHECK(words.find("[E04]") == 0);
  CHECK(words.find("before " + order.describe() + ", now " + other.describe()) != std::string::npos);
  // The ranks of one global batch share the position.
  keel::shuffled_batches const of_two{{.rows = 41, .batch = 2, .seed = 2, .rank = 1, .ranks = 2}};
  auto moved = saved_and_loaded(saved, {of_two, 0});
  CHECK(moved.next(2)->size() == 2);

  std::stringstream stream;
  torch::save(torch::data::samplers::SequentialSampler(41), stream);
  keel::libtorch_sampler into(order, 0);
  CHECK(rejection([&] { torch::load(into, stream); }).find("[E04] the archive was not saved by a keel::libtorch_sampler") == 0);

  for (auto const& [epoch, position] : std::vector<std::pair<std::int64_t, std::int64_t>>{{-1, 0}, {0, -1}, {0, 12}}) {
    torch::serialize::OutputArchive damaged;
    damaged.write("epoch", c10::IValue(epoch));
    damaged.write("position", c10::IValue(position));
    damaged.write("order", c10::IValue(order.describe()));
    std::stringstream bytes;
    damaged.save_to(bytes);
    CHECK(rejection([&] { torch::load(into, bytes); }).find("[E05]") == 0);
  }
  CHECK(into.next(4)->size() == 4);
  CHECK_THROWS_AS(keel::libtorch_sampler(order, 0, -1), keel::error);
}

TEST_CASE("a loader of another batch size than its order's is an error that names both, with and without workers") {
  keel::shuffled_batches const order{{.rows = 41, .batch = 4, .seed = 2}};
  for (std::size_t const workers : {0, 2}) {
    auto const loader = loader_of(std::make_shared<keel::libtorch_sampler>(order, 0), workers, 8);
    try {
      for (auto const& batch : *loader) rows_of(batch);
      FAIL("batches of another size came without a word");
    } catch (keel::error const& thrown) {
      CHECK(thrown.id() == "E12");
      CHECK(std::string(thrown.what()).find("batches of 8 rows, but the order has batches of 4") != std::string::npos);
    }
  }
}

TEST_CASE("a source that can begin anywhere is asked to, and not walked through") {
  scratch_directory const directory;
  keel::shuffled_batches const order{{.rows = 24, .batch = 4, .seed = 9}};
  std::vector<std::pair<std::int64_t, std::int64_t>> asked;
  auto const make = [&] {
    return [&](std::int64_t epoch, std::int64_t position) {
      asked.emplace_back(epoch, position);
      return order(epoch, position);
    };
  };
  std::vector<std::int64_t> seen;
  go(directory / "run", make, 4, seen);
  go(directory / "run", make, 1, seen);
  CHECK(asked == std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 0}, {1, 0}, {1, 2}});
}

TEST_CASE("data in another order than the run's is rejected in words, and taken where that is asked for") {
  scratch_directory const directory;
  struct plain : keel::recipe<keel::checkpoint::every<1_steps>> {};
  auto const go_on = [&](keel::shuffle_settings const& data, std::int64_t updates, bool accept = false) -> std::string {
    auto const model = make_small();
    torch::optim::AdamW optimizer(model->parameters(), 0.05);
    keel::trainer<plain> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = updates, .accept_changed_recipe = accept})};
    try {
      run.fit(keel::shuffled_batches{data}, [&](keel::row_numbers const& rows) {
        return mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(rows[0])));
      });
    } catch (keel::checkpoint_error const& thrown) {
      return thrown.what();
    }
    return "accepted";
  };
  CHECK(go_on({.rows = 82, .batch = 4, .seed = 1}, 3) == "accepted");
  CHECK(go_on({.rows = 82, .batch = 4, .seed = 2}, 6).find("shuffled by seed 1, now 82 rows in batches of 4, shuffled by seed 2") != std::string::npos);
  CHECK(go_on({.rows = 88, .batch = 4, .seed = 1}, 6).find("[E03]") == 0);
  CHECK(go_on({.rows = 82, .batch = 4, .seed = 1, .drop_last = true}, 6).find("now 82 rows in batches of 4, shuffled by seed 1, without a last batch that is not full") != std::string::npos);
  CHECK(go_on({.rows = 82, .batch = 4, .seed = 1}, 6) == "accepted");
  CHECK(go_on({.rows = 82, .batch = 5, .seed = 1}, 9, true) == "accepted");
}
