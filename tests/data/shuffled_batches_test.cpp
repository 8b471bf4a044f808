// The order of the data as a function of seed, epoch and position.
#include "../support.hpp"

#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>

#include <keel/data/libtorch_sampler.hpp>
#include <keel/data/shuffled_batches.hpp>
#include <set>

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

TEST_CASE("an order without sense, or of too few rows, is refused in words") {
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

TEST_CASE("data in another order than the run's is refused in words, and taken where that is asked for") {
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
  CHECK(go_on({.rows = 40, .batch = 4, .seed = 1}, 3) == "accepted");
  CHECK(go_on({.rows = 40, .batch = 4, .seed = 2}, 6).find("shuffled by seed 1, now 40 rows in batches of 4, shuffled by seed 2") != std::string::npos);
  CHECK(go_on({.rows = 48, .batch = 4, .seed = 1}, 6).find("[E03]") == 0);
  CHECK(go_on({.rows = 40, .batch = 4, .seed = 1}, 6) == "accepted");
  CHECK(go_on({.rows = 40, .batch = 5, .seed = 1}, 9, true) == "accepted");
}
