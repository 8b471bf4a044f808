#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/samplers/random.h>
#include <torch/data/transforms/stack.h>

#include <csignal>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/istream.hpp>
#include <range/v3/view/transform.hpp>
#include <sstream>
#include <thread>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct plain : keel::recipe<> {};
struct saving : keel::recipe<keel::checkpoint::every<1000_steps>> {};

struct numbered_dataset : torch::data::datasets::Dataset<numbered_dataset> {
  torch::data::Example<> get(std::size_t index) override {
    at::Tensor const x = at::full({6}, static_cast<double>(index) / 10.0);
    return {x, x.sum().view({1})};
  }
  c10::optional<std::size_t> size() const override { return 20; }
};

auto endless(std::int64_t epoch) {
  return ranges::views::iota(std::int64_t{0}) | ranges::views::transform([epoch](std::int64_t i) {
           return make_pair_batch(static_cast<std::uint64_t>(1000 * epoch + i));
         });
}

template <class Recipe = plain>
struct fixture {
  explicit fixture(keel::trainer_options options = {})
      : model(make_small()), optimizer(model->parameters(), 0.1), run{model, optimizer, quiet(std::move(options))} {}
  std::shared_ptr<small_module> model;
  torch::optim::SGD optimizer;
  keel::trainer<Recipe> run;
};

}  // namespace

TEST_CASE("fit takes a vector, a lazy range, a single-pass stream, a function of the epoch and a data loader") {
  SECTION("a vector, for as many epochs as updates need") {
    fixture<> f({.updates = 7});
    std::vector<pair_batch> const data = {make_pair_batch(1), make_pair_batch(2), make_pair_batch(3)};
    CHECK(f.run.fit(data, mean_squared_error(f.model)).get<keel::result::finished>().updates == 7);
  }
  SECTION("one pass where nothing says how long") {
    fixture<> f;
    std::vector<pair_batch> const data = {make_pair_batch(1), make_pair_batch(2), make_pair_batch(3)};
    CHECK(f.run.fit(data, mean_squared_error(f.model)).get<keel::result::finished>().updates == 3);
  }
  SECTION("a single-pass stream ends where it ends") {
    fixture<> f({.updates = 100});
    std::istringstream seeds("4 8 15 16 23");
    auto data = ranges::istream_view<std::uint64_t>(seeds) |
                ranges::views::transform([](std::uint64_t seed) { return make_pair_batch(seed); });
    CHECK(f.run.fit(data, mean_squared_error(f.model)).get<keel::result::finished>().updates == 5);
  }
  SECTION("a function of the epoch") {
    fixture<> f({.epochs = 3});
    std::vector<std::int64_t> epochs;
    f.run.fit(
        [&](std::int64_t epoch) {
          epochs.push_back(epoch);
          return std::vector<pair_batch>{make_pair_batch(1)};
        },
        mean_squared_error(f.model));
    CHECK(epochs == std::vector<std::int64_t>{0, 1, 2});
  }
  SECTION("LibTorch's data loader") {
    fixture<> f({.epochs = 2});
    auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
        numbered_dataset().map(torch::data::transforms::Stack<>()), torch::data::DataLoaderOptions(8));
    auto const result = f.run.fit(
        *loader, [&](torch::data::Example<> const& batch) { return at::mse_loss(f.model->forward(batch.data), batch.target); });
    CHECK(result.get<keel::result::finished>().updates == 6);
  }
}

TEST_CASE("step(batch) keeps the record and the checkpoints for a loop of one's own") {
  struct every_two : keel::recipe<keel::checkpoint::every<2_steps>> {};
  scratch_directory const directory;
  fixture<every_two> f({.run_directory = directory});
  for (std::uint64_t i = 0; i < 5; ++i)
    CHECK(f.run.step(make_pair_batch(i), mean_squared_error(f.model)).is<keel::result::updated>());
  CHECK(read_lines(directory / "metrics.jsonl").size() == 5);
  CHECK(std::filesystem::exists(directory / "checkpoints/step-000000004/manifest.json"));
  CHECK(f.run.cursor().consumed == 5);
}

TEST_CASE("request_stop ends fit at the next step boundary, and the run can go on") {
  scratch_directory const directory;
  fixture<saving> f({.run_directory = directory, .updates = 50});
  f.run.on([&](keel::event::update_end const& e) {
    if (e.update == 7) f.run.request_stop();
  });
  auto const result = f.run.fit(endless, mean_squared_error(f.model));
  REQUIRE(result.is<keel::result::stopped>());
  CHECK(result.get<keel::result::stopped>().updates == 7);
  CHECK(std::filesystem::exists(directory / "checkpoints/step-000000007"));
  CHECK(f.run.fit(endless, mean_squared_error(f.model)).get<keel::result::finished>().updates == 50);
}

TEST_CASE("SIGTERM, SIGINT and SIGUSR1 end fit at an update boundary with a checkpoint, and the handlers are restored") {
  for (int const signal : {SIGTERM, SIGINT, SIGUSR1}) {
    struct sigaction before = {};
    ::sigaction(signal, nullptr, &before);
    scratch_directory const directory;
    fixture<saving> f({.run_directory = directory, .updates = 1000});
    f.run.on([&](keel::event::micro_batch_begin const& e) {
      if (e.update == 3) std::raise(signal);
    });
    auto const result = f.run.fit(endless, mean_squared_error(f.model));
    REQUIRE(result.is<keel::result::stopped>());
    CHECK(result.get<keel::result::stopped>().signal == signal);
    CHECK(std::filesystem::exists(directory / "checkpoints/step-000000004"));
    struct sigaction after = {};
    ::sigaction(signal, nullptr, &after);
    CHECK(after.sa_handler == before.sa_handler);
  }
}

TEST_CASE("a trainer that does not listen leaves signals to the program") {
  struct sigaction before = {};
  ::sigaction(SIGUSR1, nullptr, &before);
  fixture<> f({.updates = 2, .stop_on_signals = false});
  f.run.on([&](keel::event::update_end const&) {
    struct sigaction during = {};
    ::sigaction(SIGUSR1, nullptr, &during);
    CHECK(during.sa_handler == before.sa_handler);
  });
  f.run.fit(endless, mean_squared_error(f.model));
}

TEST_CASE("two trainers in two threads of one process do not share a thing") {
  auto const train = [](std::vector<at::Tensor>& parameters, std::shared_ptr<small_module> model) {
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    keel::trainer<plain> run{model, optimizer, quiet({.updates = 40})};
    run.fit(endless, mean_squared_error(model));
    parameters = copies_of(model->parameters());
  };
  std::vector<at::Tensor> alone;
  train(alone, make_small(1));
  std::vector<at::Tensor> first;
  std::vector<at::Tensor> second;
  auto const a = make_small(1);
  auto const b = make_small(1);
  std::thread one([&] { train(first, a); });
  std::thread two([&] { train(second, b); });
  one.join();
  two.join();
  CHECK(same_bits(first, alone));
  CHECK(same_bits(second, alone));
}

TEST_CASE("evaluation builds no graph, moves no random number, and leaves every module's mode as it was") {
  fixture<> f;
  f.model->drop->eval();  // a user's own choice, which a blunt train() afterwards would undo
  at::manual_seed(3);
  at::Tensor const expected = at::rand({4});
  at::manual_seed(3);
  bool graph = false;
  bool training = true;
  std::vector<pair_batch> const data = {make_pair_batch(1, 8), make_pair_batch(2, 2)};
  double const loss = f.run.evaluate(data, [&](pair_batch const& batch) {
    static_cast<void>(at::rand({100}));
    at::Tensor const value = mean_squared_error(f.model)(batch);
    graph = graph || value.requires_grad();
    training = f.model->is_training();
    return value;
  });
  CHECK_FALSE(graph);
  CHECK_FALSE(training);
  CHECK(f.model->is_training());
  CHECK_FALSE(f.model->drop->is_training());
  CHECK(same_bits(at::rand({4}), expected));
  at::NoGradGuard no_grad;
  auto const one = mean_squared_error(f.model)(data[0]).item<double>();
  auto const two = mean_squared_error(f.model)(data[1]).item<double>();
  CHECK(loss == Approx((8 * one + 2 * two) / 10));
}

TEST_CASE("a failing evaluation leaves the training modes as they were") {
  fixture<> f;
  std::vector<pair_batch> const data = {make_pair_batch(1)};
  CHECK_THROWS_AS(f.run.evaluate(data, [](pair_batch const&) -> at::Tensor { throw std::runtime_error("mine"); }),
                  std::runtime_error);
  CHECK(f.model->is_training());
  CHECK_THROWS_AS(f.run.evaluate(std::vector<pair_batch>{}, mean_squared_error(f.model)), keel::data_error);
}

TEST_CASE("empty data, a missing directory and negative lengths are errors that name the way out") {
  fixture<> f({.updates = 3});
  CHECK_THROWS_AS(f.run.fit(std::vector<pair_batch>{}, mean_squared_error(f.model)), keel::data_error);
  try {
    fixture<saving> nowhere;
    FAIL("checkpoints without a directory were accepted");
  } catch (keel::error const& thrown) {
    CHECK(thrown.id() == "E12");
  }
  CHECK_THROWS_AS(fixture<>({.updates = -1}), keel::error);
}

TEST_CASE("a ladder that gives up returns its outcome after a checkpoint from which the same batch comes again") {
  struct climbing : keel::recipe<keel::checkpoint::every<1000_steps>, keel::accumulate<2>,
                                 keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
  scratch_directory const directory;
  fixture<climbing> f({.run_directory = directory, .updates = 10});
  std::vector<std::int64_t> sizes;
  auto const result = f.run.fit(endless, [&](pair_batch const& batch) {
    if (f.run.updates() == 2) throw std::bad_alloc();
    return mean_squared_error(f.model)(batch);
  });
  REQUIRE(result.is<keel::result::gave_up>());
  CHECK(f.run.cursor().consumed == 4);
  CHECK(std::filesystem::exists(directory / "checkpoints/step-000000002"));
}

TEST_CASE("a window that gives up after it crossed an epoch takes the cursor back into the epoch where it began") {
  struct climbing : keel::recipe<keel::checkpoint::every<1000_steps>, keel::accumulate<2>,
                                 keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
  scratch_directory const directory;
  fixture<climbing> f({.run_directory = directory, .updates = 10});
  std::vector<pair_batch> const three = {make_pair_batch(1), make_pair_batch(2), make_pair_batch(3)};
  int calls = 0;
  auto const result = f.run.fit(three, [&](pair_batch const& batch) {
    if (++calls > 3) throw std::bad_alloc();  // the fourth batch is the next epoch's first
    return mean_squared_error(f.model)(batch);
  });
  REQUIRE(result.is<keel::result::gave_up>());
  CHECK(f.run.cursor().epoch == 0);
  CHECK(f.run.cursor().position == 2);
  CHECK(f.run.cursor().consumed == 2);
  // The same object may go on once there is memory again, and trains on what is left.
  CHECK(f.run.fit(three, mean_squared_error(f.model)).get<keel::result::finished>().updates == 10);
}

TEST_CASE("a second fit of one trainer goes on with fresh random numbers, not with those of the epoch's beginning") {
  fixture<> f({.updates = 6});
  std::vector<at::Tensor> drawn;
  f.run.on([&](keel::event::update_end const& e) {
    drawn.push_back(at::rand({2}));
    if (e.update == 3) f.run.request_stop();
  });
  std::vector<pair_batch> const data(8, make_pair_batch(1));
  f.run.fit(data, mean_squared_error(f.model));
  f.run.fit(data, mean_squared_error(f.model));
  REQUIRE(drawn.size() == 6);
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) CHECK_FALSE(same_bits(drawn[i], drawn[j]));
  }
}

TEST_CASE("a hook asks for a checkpoint and gets it at the boundary; saving inside the window is rejected") {
  scratch_directory const directory;
  fixture<saving> f({.run_directory = directory, .updates = 5});
  bool refused = false;
  f.run.on([&](keel::event::update_end const& e) {
    if (e.update != 3) return;
    f.run.request_save();
    try {
      f.run.save();
    } catch (keel::error const& thrown) {
      refused = thrown.id() == "S16";
    }
  });
  f.run.fit(endless, mean_squared_error(f.model));
  CHECK(refused);
  keel::checkpoint_store store(directory / "checkpoints");
  CHECK(store.updates() == std::vector<std::int64_t>{3, 5});
  CHECK(store.load(3).state["run"]["data"]["consumed"] == 3);
}

TEST_CASE("a function of the epoch may return LibTorch's own pointer to a loader, or a reference to a range") {
  fixture<> f({.epochs = 2});
  auto const loader = [](std::int64_t) {
    return torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
        numbered_dataset().map(torch::data::transforms::Stack<>()), torch::data::DataLoaderOptions(8));
  };
  f.run.fit(loader,
            [&](torch::data::Example<> const& batch) { return at::mse_loss(f.model->forward(batch.data), batch.target); });
  CHECK(f.run.updates() == 6);
  fixture<> g({.epochs = 3});
  std::vector<pair_batch> const kept = {make_pair_batch(1)};
  g.run.fit([&](std::int64_t) -> std::vector<pair_batch> const& { return kept; }, mean_squared_error(g.model));
  CHECK(g.run.updates() == 3);
}

TEST_CASE("a schedule takes the run's length from options.epochs and batches that know their number") {
  struct falling : keel::recipe<keel::accumulate<2>, keel::schedule::cosine<keel::schedule::warmup_ratio<0.25>>> {};
  struct falling_and_saved : keel::recipe<keel::accumulate<2>, keel::schedule::cosine<keel::schedule::warmup_ratio<0.25>>, keel::checkpoint::every<3_steps>> {};
  std::vector<pair_batch> data;
  for (std::uint64_t seed = 0; seed < 8; ++seed) data.push_back(make_pair_batch(seed));
  scratch_directory const directory;
  auto const train_with = [&]<class Recipe>(Recipe, keel::trainer_options options, std::int64_t stop_at = -1) {
    fixture<Recipe> f(std::move(options));
    std::vector<double> rates;
    f.run.on([&](keel::event::update_end const& e) {
      rates.push_back(f.run.learning_rate());
      if (e.update == stop_at) f.run.request_stop();
    });
    f.run.fit(data, mean_squared_error(f.model));
    return std::pair(rates, copies_of(f.model->parameters()));
  };
  auto const train = [&](keel::trainer_options options) { return train_with(falling{}, std::move(options)); };
  auto const given = train({.epochs = 3, .batches_per_epoch = 8});
  CHECK(given.first.size() == 12);
  auto const found = train({.epochs = 3});
  CHECK(found.first == given.first);
  CHECK(same_bits(found.second, given.second));
  train_with(falling_and_saved{}, {.run_directory = directory.path(), .epochs = 3}, 5);
  CHECK(same_bits(train_with(falling_and_saved{}, {.run_directory = directory.path(), .epochs = 3}).second, given.second));
  try {
    train_with(falling_and_saved{}, {.run_directory = directory.path(), .epochs = 4});
    FAIL("a resume over another length was taken");
  } catch (keel::checkpoint_error const& thrown) {
    CHECK(thrown.id() == "E03");
  }

  auto const breaks_L04 = [](auto const& call) {
    try {
      call();
      FAIL("a schedule without a length trained");
    } catch (keel::recipe_error const& thrown) {
      CHECK(thrown.id() == "L04");
    }
  };
  fixture<falling> unsized({.epochs = 3});
  breaks_L04([&] { unsized.run.fit([&](std::int64_t) { return data; }, mean_squared_error(unsized.model)); });
  fixture<falling> own_loop({.epochs = 3});
  breaks_L04([&] { own_loop.run.step(data[0], mean_squared_error(own_loop.model)); });
  fixture<falling> early({.epochs = 3});
  breaks_L04([&] { early.run.resume(); });
  breaks_L04([&] { fixture<falling> none; });
  // What tries something out before the run leaves its length to the batches of fit.
  fixture<falling> tried({.epochs = 3});
  std::vector<pair_batch> const few(data.begin(), data.begin() + 4);
  tried.run.preflight(few, mean_squared_error(tried.model), {.seconds = 5.0});
  tried.run.lr_range_test(few, mean_squared_error(tried.model), {.updates = 5});
  tried.run.overfit_one_batch(few[0], mean_squared_error(tried.model), 3);
  tried.run.fit(data, mean_squared_error(tried.model));
  CHECK(same_bits(copies_of(tried.model->parameters()), given.second));
  CHECK(unsized.run.updates() + own_loop.run.updates() == 0);
}

TEST_CASE("a model that no shared pointer holds trains and is evaluated") {
  struct on_the_stack : torch::nn::Module {
    on_the_stack() : layer(register_module("layer", torch::nn::Linear(6, 1))) {}
    torch::nn::Linear layer;
  } model;
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  keel::trainer<plain> run{model, optimizer, quiet()};
  std::vector<pair_batch> const data = {make_pair_batch(1)};
  auto const loss_of = [&](pair_batch const& batch) { return at::mse_loss(model.layer(batch.first), batch.second); };
  run.fit(data, loss_of);
  CHECK(std::isfinite(run.evaluate(data, loss_of)));
  CHECK(model.is_training());
}
