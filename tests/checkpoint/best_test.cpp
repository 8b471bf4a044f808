// The best checkpoint: which one it is, that it is there, and what else an evaluation decides.
#include "../support.hpp"

#include <keel/checkpoint/verify.hpp>
#include <keel/collective/exit_code.hpp>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>

using namespace keel_test;
using namespace keel::literals;

namespace fs = std::filesystem;
namespace checkpoint = keel::checkpoint;
namespace evaluation = keel::evaluation;

namespace {

auto const endless = [](std::int64_t epoch) {
  return ranges::views::iota(100 * epoch, 100 * epoch + 100) |
         ranges::views::transform([](std::int64_t i) { return keel::row_numbers{i}; });
};

/// Evaluations return what `values` says for the number of updates: a run whose best is known.
template <class Recipe>
struct scripted {
  scripted(fs::path const& directory, std::vector<double> script, keel::trainer_options options = {})
      : values(std::move(script)), run(model, optimizer, with(directory, std::move(options))) {
    run.evaluate_on(std::vector{at::zeros({1})}, [this](at::Tensor const&) {
      return at::scalar_tensor(values.at(static_cast<std::size_t>(run.updates())), at::kDouble);
    });
  }
  static keel::trainer_options with(fs::path const& directory, keel::trainer_options options) {
    options.run_directory = directory;
    if (options.updates == 0) options.updates = 10;
    return quiet(std::move(options));
  }
  keel::outcome fit() {
    return run.fit(endless, [this](keel::row_numbers const& rows) {
      at::Tensor const loss = mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(rows[0])));
      return spoil(rows[0]) ? loss * NAN : loss;
    });
  }
  std::vector<double> values;
  std::function<bool(std::int64_t)> spoil = [](std::int64_t) { return false; };
  std::shared_ptr<small_module> model = make_small();
  torch::optim::AdamW optimizer{model->parameters(), 0.01};
  keel::trainer<Recipe> run;
};

std::vector<std::int64_t> kept(fs::path const& directory) { return keel::checkpoint_store(directory / "checkpoints").updates(); }

template <class... Options>
using every_update = keel::recipe<evaluation::every<1_steps>, checkpoint::every<1_steps, checkpoint::keep<1>, checkpoint::by_evaluation, Options...>>;

}  // namespace

TEST_CASE("best() is the path and the value of the best checkpoint, and load_best puts its weights into the model") {
  struct recipe : every_update<checkpoint::keep_best> {};
  scratch_directory const directory;
  scripted<recipe> one(directory / "run", {0, 5, 4, 1, 3, 6, 7, 8, 9, 9, 9});
  CHECK_FALSE(one.run.best());
  std::vector<at::Tensor> at_three;
  one.run.on([&](keel::event::checkpoint_saved const& e) {
    if (e.update == 3) at_three = copies_of(one.model->parameters());
  });
  one.fit();
  auto const best = one.run.best();
  REQUIRE(best);
  CHECK(best->update == 3);
  CHECK(best->value == 1.0);
  CHECK(best->path == directory / "run/checkpoints/step-000000003");
  CHECK(kept(directory / "run") == std::vector<std::int64_t>{3, 10});
  CHECK_FALSE(same_bits(copies_of(one.model->parameters()), at_three));
  CHECK(one.run.load_best().update == 3);
  CHECK(same_bits(copies_of(one.model->parameters()), at_three));
  auto const other = make_small(99);
  keel::load_weights(*other, directory / "run", {.best = true});
  CHECK(same_bits(copies_of(other->parameters()), at_three));
  keel::load_weights(*other, best->path / "model.safetensors");
  CHECK(same_bits(copies_of(other->parameters()), at_three));
  keel::load_weights(*other, directory / "run");
  CHECK_FALSE(same_bits(copies_of(other->parameters()), at_three));
}

TEST_CASE("without a best checkpoint load_best and load_weights say so") {
  struct recipe : keel::recipe<checkpoint::every<1_steps>> {};
  scratch_directory const directory;
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 2})};
  run.fit(std::vector{make_pair_batch(1)}, mean_squared_error(model));
  CHECK_FALSE(run.best());
  CHECK_THROWS_AS(run.load_best(), keel::error);
  CHECK_THROWS_AS(keel::load_weights(*model, directory / "run", {.best = true}), keel::checkpoint_error);
  CHECK_THROWS_AS(keel::load_weights(*model, directory / "run", {.averaged = true}), keel::checkpoint_error);
  CHECK_THROWS_AS(keel::load_weights(*model, directory / "nowhere"), keel::file_error);
  torch::nn::Linear other(3, 3);
  CHECK_THROWS_AS(keel::load_weights(*other, directory / "run"), keel::checkpoint_error);
}

TEST_CASE("the k best stay, and larger may be better") {
  struct smallest : every_update<checkpoint::keep_k_best<3>> {};
  struct largest : keel::recipe<evaluation::every<1_steps, evaluation::larger_is_better>,
                                checkpoint::every<1_steps, checkpoint::keep<1>, checkpoint::by_evaluation, checkpoint::keep_k_best<2>>> {};
  std::vector<double> const values = {0, 5, 4, 1, 3, 6, 2, 8, NAN, 9, 9};
  scratch_directory const directory;
  scripted<smallest> one(directory / "one", values);
  one.fit();
  CHECK(kept(directory / "one") == std::vector<std::int64_t>{3, 4, 6, 10});
  CHECK(one.run.best()->update == 3);
  scripted<largest> two(directory / "two", values);
  two.fit();
  CHECK(kept(directory / "two") == std::vector<std::int64_t>{9, 10});
  CHECK(two.run.best()->value == 9.0);
  CHECK(two.run.best()->update == 9);
}

TEST_CASE("after a rollback the best is one that is there, also where a better one was abandoned") {
  struct recipe : keel::recipe<evaluation::every<1_steps>, keel::nonfinite::rollback<2, keel::nonfinite::skip_data>, keel::determinism::seeded<3>,
                               checkpoint::every<1_steps, checkpoint::keep<4>, checkpoint::by_evaluation, checkpoint::keep_best>> {};
  scratch_directory const directory;
  // The best is 2, then 7; windows 8 and 9 are bad, so that the run goes back before them: to 5 at the newest.
  scripted<recipe> one(directory / "run", {9, 5, 3, 4, 4, 4, 4, 1, 6, 6, 6, 6, 6}, {.updates = 12});
  bool is_bad = true;
  one.spoil = [&](std::int64_t row) { return is_bad && (row == 8 || row == 9); };
  std::vector<std::int64_t> after;
  one.run.on([&](keel::event::rolled_back const& e) {
    is_bad = false;
    one.values[7] = 6;
    auto const best = one.run.best();
    REQUIRE(best);
    CHECK(keel::find_damage(best->path).empty());
    after = {e.to, best->update};
  });
  one.fit();
  REQUIRE(after.size() == 2);
  if (after[0] < 7) CHECK(after[1] == 2);
  auto const best = one.run.best();
  REQUIRE(best);
  CHECK(keel::find_damage(best->path).empty());
}

TEST_CASE("after a restart from an older checkpoint the best is the one that it calls the best, and is there") {
  struct recipe : keel::recipe<evaluation::every<1_steps>,
                               checkpoint::every<1_steps, checkpoint::keep<5>, checkpoint::by_evaluation, checkpoint::keep_best>> {};
  scratch_directory const directory;
  scripted<recipe>(directory / "run", {9, 5, 3, 4, 4, 4, 4, 4, 4, 1, 6}).fit();
  scripted<recipe> two(directory / "run", {9, 5, 3, 4, 4, 4, 4, 4, 4, 4, 6}, {.resume_at = 7});
  CHECK(two.run.resume());
  REQUIRE(two.run.best());
  CHECK(two.run.best()->update == 2);
  CHECK(keel::find_damage(two.run.best()->path).empty());
  two.fit();
  CHECK(two.run.best()->update == 2);
  CHECK(keel::find_damage(two.run.best()->path).empty());
}

TEST_CASE("a best checkpoint that a person removed is forgotten, and the record says so") {
  struct recipe : every_update<checkpoint::keep_best> {};
  scratch_directory const directory;
  scripted<recipe>(directory / "run", {9, 5, 1, 4, 4, 4, 4, 4, 4, 4, 6}, {.updates = 6}).fit();
  fs::remove_all(directory / "run/checkpoints/step-000000002");
  scripted<recipe> two(directory / "run", {9, 5, 1, 4, 4, 4, 4, 4, 3, 4, 6});
  two.fit();
  CHECK(read_file(directory / "run/events.jsonl").find("\"event\":\"best_lost\",\"update\":2") != std::string::npos);
  CHECK(two.run.best()->update == 8);
}

TEST_CASE("several metrics come from one pass, are in the record by name, and the one that the recipe monitors is judged") {
  struct recipe : keel::recipe<evaluation::every<2_steps, evaluation::monitor<"test/accuracy">, evaluation::larger_is_better>,
                               checkpoint::every<2_steps, checkpoint::keep_best, checkpoint::by_evaluation>> {};
  scratch_directory const directory;
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 6})};
  int passes = 0;
  auto const metrics_of = [&](pair_batch const& batch) {
    ++passes;
    at::Tensor const output = model->forward(batch.first);
    return keel::batch_metrics{{"loss", at::mse_loss(output, batch.second)},
                               {"accuracy", run.updates() == 4 ? 0.75 : 0.5},
                               {"tokens", keel::weighted_loss{at::scalar_tensor(2.0), 3.0}}};
  };
  std::vector<pair_batch> const data = {make_pair_batch(1), make_pair_batch(2, 4)};
  run.evaluate_on("train", data, metrics_of);
  run.evaluate_on("test", data, metrics_of);
  run.fit(endless, [&](keel::row_numbers const& rows) { return mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(rows[0]))); });
  CHECK(passes == 3 * 2 * 2);
  REQUIRE(run.best());
  CHECK(run.best()->update == 4);
  CHECK(run.best()->value == 0.75);
  auto const events = read_lines(directory / "run/events.jsonl");
  auto const line = std::find_if(events.begin(), events.end(), [](std::string const& one) { return one.find("\"name\":\"test\"") != std::string::npos; });
  REQUIRE(line != events.end());
  auto const event = nlohmann::json::parse(*line);
  CHECK(event["event"] == "evaluated");
  CHECK(event["values"]["accuracy"] == 0.5);
  CHECK(event["values"]["tokens"] == 2.0);
  CHECK(event["loss"] == event["values"]["loss"]);

  auto const result = run.evaluate(data, metrics_of);
  CHECK(result["accuracy"] == 0.5);
  CHECK_THROWS_AS(result["acuracy"], keel::error);
  double const loss = run.evaluate(data, mean_squared_error(model));
  CHECK(loss == result["loss"]);
  // By rows: eight and four.
  at::NoGradGuard const no_grad;
  double const first = mean_squared_error(model)(data[0]).item<double>();
  double const second = mean_squared_error(model)(data[1]).item<double>();
  CHECK(std::abs(loss - (first * 8 + second * 4) / 12) < 1e-12);
}

TEST_CASE("a metric that is not one number is named, and so is one that the recipe monitors and no evaluation gives") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  struct plain : keel::recipe<> {};
  keel::trainer<plain> run{model, optimizer, quiet({.updates = 2})};
  try {
    run.evaluate(std::vector{make_pair_batch(1)}, [](pair_batch const&) { return keel::batch_metrics{{"accuracy", at::zeros({8})}}; });
    FAIL("not a number");
  } catch (keel::data_error const& thrown) {
    CHECK(thrown.id() == "E07");
    CHECK(std::string(thrown.what()).find("the metric accuracy must be one number for each batch and is of shape [8]") != std::string::npos);
  }
  struct other : keel::recipe<evaluation::every<1_steps, evaluation::monitor<"accuracy">, evaluation::early_stop<2>>> {};
  keel::trainer<other> two{model, optimizer, quiet({.updates = 2})};
  two.evaluate_on("validation", std::vector{make_pair_batch(1)}, [](pair_batch const&) { return keel::batch_metrics{{"f1", 0.5}}; });
  try {
    two.fit(std::vector{make_pair_batch(1)}, mean_squared_error(model));
    FAIL("monitored nothing");
  } catch (keel::error const& thrown) {
    CHECK(std::string(thrown.what()).find("validation/f1") != std::string::npos);
  }
}

TEST_CASE("averaged evaluates the moving average, and training goes on with the parameters") {
  struct plain : keel::recipe<keel::ema<0.5>, evaluation::every<2_steps>> {};
  struct average : keel::recipe<keel::ema<0.5>, evaluation::every<2_steps, evaluation::averaged>> {};
  auto const go = [](auto type) {
    auto const model = make_small();
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    keel::trainer<typename decltype(type)::type> run{model, optimizer, quiet({.updates = 4})};
    std::vector<double> seen;
    run.evaluate_on(std::vector{make_pair_batch(1)}, [&](pair_batch const& batch) {
      at::Tensor const loss = mean_squared_error(model)(batch);
      seen.push_back(loss.item<double>());
      return loss;
    });
    run.fit(endless, [&](keel::row_numbers const& rows) { return mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(rows[0]))); });
    return std::pair(seen, copies_of(model->parameters()));
  };
  auto const [of_parameters, first] = go(std::type_identity<plain>());
  auto const [of_average, second] = go(std::type_identity<average>());
  CHECK(of_parameters != of_average);
  CHECK(same_bits(first, second));
}

TEST_CASE("load_weights with averaged gives the moving average of a checkpoint") {
  struct recipe : keel::recipe<keel::ema<0.5>, checkpoint::every<2_steps>> {};
  scratch_directory const directory;
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 4})};
  run.fit(endless, [&](keel::row_numbers const& rows) { return mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(rows[0]))); });
  auto const other = make_small(99);
  keel::load_weights(*other, directory / "run", {.averaged = true});
  auto const scope = run.averaged();
  CHECK(same_bits(copies_of(other->parameters()), copies_of(model->parameters())));
}

TEST_CASE("early stopping: min_delta, not_before, stop_at, stop_on_nonfinite") {
  scratch_directory const directory;
  int count = 0;
  auto const updates = [&](auto type, std::vector<double> values) {
    scripted<typename decltype(type)::type> one(directory / std::to_string(++count), std::move(values));
    return one.fit().template get<keel::result::finished>().updates;
  };
  using every = evaluation::every<1_steps>;
  struct by_delta : keel::recipe<evaluation::every<1_steps, evaluation::early_stop<2>, evaluation::min_delta<0.5>>> {};
  CHECK(updates(std::type_identity<by_delta>(), {0, 9, 8.8, 8.6, 8, 7, 6, 5, 4, 3, 2}) == 3);
  struct later : keel::recipe<evaluation::every<1_steps, evaluation::early_stop<2>, evaluation::not_before<6_steps>>> {};
  CHECK(updates(std::type_identity<later>(), {0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2}) == 6);
  struct reached : keel::recipe<evaluation::every<1_steps, evaluation::stop_at<3.0>>> {};
  CHECK(updates(std::type_identity<reached>(), {0, 9, 8, 3.1, 3, 7, 6, 5, 4, 3, 2}) == 4);
  struct climbed : keel::recipe<evaluation::every<1_steps, evaluation::stop_at<0.9>, evaluation::larger_is_better>> {};
  CHECK(updates(std::type_identity<climbed>(), {0, 0.1, 0.5, 0.95, 3, 7, 6, 5, 4, 3, 2}) == 3);
  struct broken : keel::recipe<evaluation::every<1_steps, evaluation::stop_on_nonfinite>> {};
  CHECK(updates(std::type_identity<broken>(), {0, 9, NAN, 3, 3, 7, 6, 5, 4, 3, 2}) == 2);
  struct neither : keel::recipe<every> {};
  CHECK(updates(std::type_identity<neither>(), {0, 9, NAN, 3, 3, 7, 6, 5, 4, 3, 2}) == 10);
}

TEST_CASE("an early stop is over in the next process, too, whatever ended the run") {
  struct recipe : keel::recipe<evaluation::every<1_steps, evaluation::stop_at<3.0>>, checkpoint::every<1_steps>> {};
  scratch_directory const directory;
  std::vector<double> const values = {0, 9, 8, 3, 9, 9, 9, 9, 9, 9, 9};
  scripted<recipe>(directory / "run", values).fit();
  scripted<recipe> again(directory / "run", values);
  CHECK(again.fit().get<keel::result::finished>().updates == 3);
}

TEST_CASE("evaluations and saves once an epoch, also where an update reaches over its end, and the same after a resume") {
  struct recipe : keel::recipe<keel::accumulate<2>, evaluation::every<1_epochs>, checkpoint::every<1_epochs, checkpoint::keep<9>>> {};
  std::vector<pair_batch> const data = {make_pair_batch(1), make_pair_batch(2), make_pair_batch(3)};
  auto const go = [&](fs::path const& directory, std::int64_t stop_at) {
    auto const model = make_small();
    torch::optim::AdamW optimizer(model->parameters(), 0.01);
    keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory, .epochs = 4})};
    run.on([&](keel::event::update_end const& e) {
      if (e.update == stop_at) run.request_stop();
    });
    run.evaluate_on(std::vector{make_pair_batch(9)}, mean_squared_error(model));
    run.fit(data, mean_squared_error(model));
    return copies_of(model->parameters());
  };
  auto const evaluated = [](fs::path const& directory) {
    std::vector<std::int64_t> found;
    for (std::string const& line : read_lines(directory / "events.jsonl")) {
      auto const event = nlohmann::json::parse(line);
      if (event["event"] == "evaluated") found.push_back(event["update"].get<std::int64_t>());
    }
    return found;
  };
  scratch_directory const directory;
  auto const whole = go(directory / "whole", -1);
  // Epochs of three micro-batches in updates of two: they end after 1.5, 3, 4.5 and 6 updates.
  CHECK(evaluated(directory / "whole") == std::vector<std::int64_t>{2, 3, 5, 6});
  CHECK(kept(directory / "whole") == std::vector<std::int64_t>{2, 3, 5, 6});
  for (std::int64_t stop = 1; stop < 6; ++stop) {
    fs::path const run = directory / ("run" + std::to_string(stop));
    go(run, stop);
    CHECK(same_bits(go(run, -1), whole));
    CHECK(evaluated(run) == std::vector<std::int64_t>{2, 3, 5, 6});
  }
}

TEST_CASE("a save every so many tokens") {
  struct recipe : keel::recipe<checkpoint::every<20_tokens, checkpoint::keep<9>>> {};
  scratch_directory const directory;
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 8})};
  run.fit(std::vector{make_pair_batch(1)}, mean_squared_error(model));
  // Eight rows an update: 20, 40 and 60 are passed at 3, 5 and 8.
  CHECK(kept(directory / "run") == std::vector<std::int64_t>{3, 5, 8});
}

TEST_CASE("on_exception: what was not saved is, and the next process goes on from there to the same bits") {
  struct recipe : keel::recipe<checkpoint::every<100_steps, checkpoint::on_exception>> {};
  auto const go = [](fs::path const& directory, std::int64_t throw_at) {
    auto const model = make_small();
    torch::optim::AdamW optimizer(model->parameters(), 0.01);
    keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory, .updates = 12})};
    auto const loss_of = [&](keel::row_numbers const& rows) {
      if (rows[0] == throw_at) throw std::runtime_error("the data is gone");
      return mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(rows[0])));
    };
    if (throw_at < 0) {
      run.fit(endless, loss_of);
    } else {
      CHECK_THROWS_AS(run.fit(endless, loss_of), std::runtime_error);
    }
    return copies_of(model->parameters());
  };
  scratch_directory const directory;
  auto const whole = go(directory / "whole", -1);
  go(directory / "run", 7);
  CHECK(kept(directory / "run") == std::vector<std::int64_t>{7});
  CHECK(same_bits(go(directory / "run", -1), whole));
}

TEST_CASE("numbers that a dropped update drew are drawn again by the process that goes on") {
  struct recipe : keel::recipe<checkpoint::every<100_steps, checkpoint::on_exception>, keel::accumulate<4>, keel::determinism::seeded<2>> {};
  auto const go = [](fs::path const& directory, std::int64_t throw_at) {
    keel::seed<recipe>();
    auto const model = std::make_shared<small_module>(0.5);
    torch::optim::AdamW optimizer(model->parameters(), 0.01);
    keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory, .updates = 6})};
    // The source draws, too.
    auto const drawn = [](std::int64_t epoch) {
      return ranges::views::iota(100 * epoch, 100 * epoch + 100) | ranges::views::transform([](std::int64_t i) {
               return std::pair(keel::row_numbers{i}, at::rand({8, 6}));
             });
    };
    auto const loss_of = [&](std::pair<keel::row_numbers, at::Tensor> const& batch) {
      at::Tensor const y = model->forward(batch.second.to(device()));
      if (batch.first[0] == throw_at) throw std::runtime_error("the data is gone");
      return y.square().mean();
    };
    if (throw_at < 0) {
      run.fit(drawn, loss_of);
    } else {
      CHECK_THROWS_AS(run.fit(drawn, loss_of), std::runtime_error);
    }
    return copies_of(model->parameters());
  };
  scratch_directory const directory;
  auto const whole = go(directory / "whole", -1);
  for (std::int64_t const at : {4, 5, 10, 15}) {
    auto const name = "run" + std::to_string(at);
    go(directory / name, at);
    CHECK(kept(directory / name) == std::vector<std::int64_t>{at / 4});
    CHECK(same_bits(go(directory / name, -1), whole));
  }
}

TEST_CASE("an evaluation that throws is made by the process that goes on: the same record, the same end") {
  using recipe = keel::recipe<evaluation::every<2_steps, evaluation::early_stop<2>>,
                              checkpoint::every<4_steps, checkpoint::keep<9>, checkpoint::on_exception>>;
  struct named : recipe {};
  std::vector<double> const script = {9, 9, 5, 5, 6, 6, 7, 7, 8, 8, 8};
  scratch_directory const directory;
  scripted<named> whole(directory / "whole", script);
  whole.fit();
  {
    scripted<named> broken(directory / "run", script);
    broken.values.resize(6);  // the evaluation of update 6 throws
    CHECK_THROWS_AS(broken.fit(), std::out_of_range);
  }
  scripted<named> goes_on(directory / "run", script);
  goes_on.fit();
  CHECK(goes_on.run.updates() == whole.run.updates());
  CHECK(timeless_metrics(directory / "run") == timeless_metrics(directory / "whole"));
}

TEST_CASE("the best checkpoint survives a save that comes to nothing, whatever else is left out meanwhile") {
  keel::checkpoint::settings settings;
  settings.best = true;
  settings.metric = keel::checkpoint::metric::training_loss;
  keel::best_checkpoint best(settings, {});
  keel::world_of_one const world;
  best.updated(5.0);
  best.judge(world, 1);
  best.settled(1);
  best.updated(3.0);
  best.judge(world, 2);
  best.revert(3);
  best.revert(2);
  REQUIRE(best.first().has_value());
  CHECK(best.first()->update == 1);
}

TEST_CASE("load_best finds the best after a save that was rejected because the parameters are NaN") {
  struct recipe : keel::recipe<checkpoint::every<1_steps, checkpoint::keep<1>, checkpoint::keep_best, checkpoint::by_training_loss>> {};
  scratch_directory const directory;
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 9})};
  run.on([&](keel::event::update_end const& e) {
    at::NoGradGuard no_grad;
    if (e.update == 3) model->first->weight.fill_(NAN);
  });
  auto const batches = std::vector(9, make_pair_batch(1));
  CHECK_THROWS_AS(run.fit(batches, mean_squared_error(model)), keel::nonfinite_error);
  CHECK(run.load_best().update < 3);
  CHECK(model->first->weight.isfinite().all().item<bool>());
}

TEST_CASE("a run that stopped at one bound goes on to another") {
  keel::evaluation::settings at_three;
  at_three.has_stop_at = true;
  at_three.stop_at = 3.0;
  keel::early_stop one(at_three);
  keel::world_of_one const world;
  CHECK(one.evaluated(keel::agree(world, 2.5), 4));
  nlohmann::json object;
  keel::tensor_map tensors;
  keel::state_writer writer(object, tensors);
  one.visit(writer);
  auto const read = [&](keel::evaluation::settings const& settings) {
    keel::early_stop other(settings);
    keel::state_reader reader(object, tensors, "a test");
    other.visit(reader);
    return other.is_over();
  };
  CHECK(read(at_three));
  auto at_two = at_three;
  at_two.stop_at = 2.0;
  CHECK_FALSE(read(at_two));
  CHECK_FALSE(read({}));
}

TEST_CASE("a loop of one's own ends where an evaluation ends the run") {
  struct recipe : keel::recipe<evaluation::every<1_steps, evaluation::stop_at<3.0>>> {};
  scratch_directory const directory;
  scripted<recipe> one(directory / "run", {9, 9, 5, 2, 1, 1, 1, 1, 1, 1, 1});
  keel::signal_listener const signals(false);
  int updates = 0;
  while (updates < 9 && !one.run.should_stop(signals)) {
    one.run.step(make_pair_batch(1), mean_squared_error(one.model));
    ++updates;
  }
  CHECK(updates == 3);
}

TEST_CASE("load_best loads the average where the average was judged") {
  struct recipe : keel::recipe<keel::ema<0.5>, evaluation::every<1_steps, evaluation::averaged>,
                               checkpoint::every<1_steps, checkpoint::keep_best, checkpoint::by_evaluation>> {};
  scratch_directory const directory;
  scripted<recipe> one(directory / "run", {9, 9, 5, 6, 7, 8, 8, 8, 8, 8, 8});
  std::vector<at::Tensor> averages;
  one.run.on([&](keel::event::update_end const& e) {
    if (e.update != 2) return;
    auto const scope = one.run.averaged();
    averages = copies_of(one.model->parameters());
  });
  one.fit();
  CHECK(one.run.load_best().update == 2);
  CHECK(averages.size() == one.model->parameters().size());
}

TEST_CASE("one batch is tried out where the length of the run is given in epochs") {
  struct recipe : keel::recipe<keel::schedule::cosine<>> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  keel::trainer<recipe> run{model, optimizer, quiet({.epochs = 2, .batches_per_epoch = 5})};
  CHECK_NOTHROW(run.overfit_one_batch(make_pair_batch(1), mean_squared_error(model)));
}

TEST_CASE("epochs and batches_per_epoch give a schedule its length, and a source of another length is rejected") {
  struct recipe : keel::recipe<keel::accumulate<2>, keel::schedule::linear<>> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::shuffled_batches const order{{.rows = 40, .batch = 8}};
  keel::trainer<recipe> run{model, optimizer, quiet({.epochs = 2, .batches_per_epoch = order.size()})};
  auto const loss_of = [&](keel::row_numbers const& rows) { return mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(rows[0]))); };
  CHECK(run.fit(order, loss_of).get<keel::result::finished>().updates == 5);
  CHECK(run.learning_rate() == 0.0);
  keel::trainer<recipe> other{model, optimizer, quiet({.epochs = 2, .batches_per_epoch = 7})};
  CHECK_THROWS_AS(other.fit(order, loss_of), keel::error);
}

TEST_CASE("resume_from begins with a checkpoint of another run, exactly; weights_from takes the weights alone") {
  struct recipe : keel::recipe<checkpoint::every<4_steps, checkpoint::keep<9>>, keel::determinism::seeded<3>> {};
  auto const go = [](keel::trainer_options options) {
    auto const model = std::make_shared<small_module>(0.3);
    torch::optim::AdamW optimizer(model->parameters(), 0.01);
    options.updates = 12;
    keel::trainer<recipe> run{model, optimizer, quiet(std::move(options))};
    std::int64_t first = -1;
    run.on([&](keel::event::update_begin const& e) {
      if (first < 0) first = e.update;
    });
    run.fit(endless, [&](keel::row_numbers const& rows) { return mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(rows[0]))); });
    return std::pair(first, copies_of(model->parameters()));
  };
  scratch_directory const directory;
  auto const whole = go({.run_directory = directory / "a"});
  auto const fork = go({.run_directory = directory / "b", .resume_from = directory / "a/checkpoints/step-000000004"});
  CHECK(fork.first == 4);
  CHECK(same_bits(fork.second, whole.second));
  CHECK(read_lines(directory / "b/metrics.jsonl").size() == 8);
  auto const warm = go({.run_directory = directory / "c", .weights_from = directory / "a"});
  CHECK(warm.first == 0);
  CHECK_FALSE(same_bits(warm.second, whole.second));
  CHECK_THROWS_AS(go({.run_directory = directory / "d", .resume_from = directory / "a/checkpoints/step-000000005"}), keel::error);
  try {
    go({.run_directory = directory / "e", .resume_from = directory / "a"});
    FAIL("a run directory was taken for a checkpoint");
  } catch (keel::file_error const& thrown) {
    CHECK(std::string(thrown.what()).find("Its newest is " + (directory / "a/checkpoints/step-").string()) != std::string::npos);
  }
}

TEST_CASE("predict gives every batch's result in order, in evaluation mode and without a graph, and leaves the model as it was") {
  auto const model = make_small(1, 0.5);
  std::vector<pair_batch> const data = {make_pair_batch(1), make_pair_batch(2), make_pair_batch(3)};
  auto const random = at::globalContext().defaultGenerator(at::kCPU).get_state();
  auto const found = keel::predict(*model, data, [&](pair_batch const& batch) { return model->forward(batch.first); });
  REQUIRE(found.size() == 3);
  CHECK(model->is_training());
  CHECK(model->drop->is_training());
  CHECK(same_bits(at::globalContext().defaultGenerator(at::kCPU).get_state(), random));
  model->eval();
  at::NoGradGuard const no_grad;
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK_FALSE(found[i].requires_grad());
    CHECK(same_bits(found[i], model->forward(data[i].first)));
  }
}

TEST_CASE("a second fit of a trainer that is done says so without speaking of a run directory") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  struct plain : keel::recipe<> {};
  scratch_directory const directory;
  std::FILE* const console = std::fopen((directory / "console").c_str(), "w");
  {
    keel::trainer<plain> run{model, optimizer, {.updates = 2, .console = console}};
    run.fit(std::vector{make_pair_batch(1)}, mean_squared_error(model));
    run.fit(std::vector{make_pair_batch(1)}, mean_squared_error(model));
  }
  std::fclose(console);
  CHECK(read_file(directory / "console").find("this trainer has completed its 2 updates") != std::string::npos);
}

TEST_CASE("a batch of another dtype than the model is named with both dtypes and the way out: E07") {
  struct plain : keel::recipe<> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::trainer<plain> run{model, optimizer, quiet({.updates = 2})};
  pair_batch const batch = make_pair_batch(1);
  std::vector<pair_batch> const inputs = {{batch.first.to(at::kDouble), batch.second}};
  std::vector<pair_batch> const targets = {{batch.first, batch.second.to(at::kDouble)}};
  // Newer LibTorchs compute the loss of two dtypes in the wider one, and then there is nothing to say.
  bool const promotes = [&] {
    try {
      mean_squared_error(model)(targets[0]).backward();
      return true;
    } catch (c10::Error const&) {
      return false;
    }
  }();
  model->zero_grad();
  std::vector<std::vector<pair_batch>> rejected{1, inputs};
  if (!promotes) rejected.push_back(targets);
  for (auto const& data : rejected) {
    try {
      run.fit(data, mean_squared_error(model));
      FAIL("two dtypes");
    } catch (keel::data_error const& thrown) {
      CHECK(thrown.id() == "E07");
      CHECK(std::string(thrown.what()).find("the batch is of Double and the model of Float") != std::string::npos);
    }
  }
  CHECK_THROWS_AS(run.fit(std::vector{batch}, [](pair_batch const&) -> at::Tensor { TORCH_CHECK(false, "a dtype of mine"); }), c10::Error);
}

TEST_CASE("the last epoch of a run whose length is given in epochs is evaluated and saved as the others") {
  struct recipe : keel::recipe<evaluation::every<1_epochs>, checkpoint::every<1_epochs, checkpoint::keep<9>, checkpoint::keep_best, checkpoint::by_evaluation>> {};
  scratch_directory const directory;
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  std::vector<pair_batch> const data = {make_pair_batch(1), make_pair_batch(2)};
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .epochs = 3, .batches_per_epoch = 2})};
  std::vector<std::int64_t> ends;
  std::vector<std::int64_t> at;
  run.on([&](keel::event::epoch_end const& e) { ends.push_back(e.epoch); });
  run.evaluate_on(std::vector{make_pair_batch(9)}, [&](pair_batch const& batch) { return at.push_back(run.updates()), mean_squared_error(model)(batch); });
  CHECK(run.fit(data, mean_squared_error(model)).get<keel::result::finished>().updates == 6);
  CHECK(ends == std::vector<std::int64_t>{0, 1, 2});
  CHECK(at == std::vector<std::int64_t>{2, 4, 6});
  CHECK_FALSE(keel::checkpoint_store(directory / "run/checkpoints").is_requested(6));
}

TEST_CASE("a best evaluation at an epoch's end is saved at once, whatever the cadence of the saves") {
  struct recipe : keel::recipe<evaluation::every<1_epochs>, checkpoint::every<1000_steps, checkpoint::on_best, checkpoint::by_evaluation>> {};
  scratch_directory const directory;
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  std::vector<double> values = {5, 3, 4};
  keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .epochs = 3})};
  std::size_t epoch = 0;
  run.evaluate_on("validation", std::vector{make_pair_batch(9)}, [&](pair_batch const&) { return at::scalar_tensor(values.at(epoch++)); });
  run.fit(std::vector{make_pair_batch(1), make_pair_batch(2)}, mean_squared_error(model));
  REQUIRE(run.best());
  CHECK(run.best()->update == 4);
  CHECK(run.best()->value == 3.0);
  CHECK(keel::find_damage(run.best()->path).empty());
}

TEST_CASE("a plain loss is monitored as validation/loss, and a name that is given again keeps its place") {
  struct recipe : keel::recipe<evaluation::every<1_steps, evaluation::monitor<"validation/loss">, evaluation::stop_at<1.0>>> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  keel::trainer<recipe> run{model, optimizer, quiet({.updates = 5})};
  auto const gives = [](double value) { return [value](pair_batch const&) { return at::scalar_tensor(value); }; };
  run.evaluate_on("validation", std::vector{make_pair_batch(9)}, gives(9.0));
  run.evaluate_on("test", std::vector{make_pair_batch(9)}, gives(9.0));
  run.evaluate_on("validation", std::vector{make_pair_batch(9)}, gives(0.5));
  CHECK(run.fit(std::vector{make_pair_batch(1)}, mean_squared_error(model)).get<keel::result::finished>().updates == 1);
}

TEST_CASE("the average of buffers leaves a mask of minus infinity alone") {
  struct masked : small_module {
    at::Tensor mask = register_buffer("mask", at::full({3}, -INFINITY));
    at::Tensor level = register_buffer("level", at::zeros({1}));
  };
  struct recipe : keel::recipe<keel::ema<0.5, keel::ema_buffers>> {};
  auto const model = std::make_shared<masked>();
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  keel::trainer<recipe> run{model, optimizer, quiet({.updates = 2})};
  run.fit(std::vector{make_pair_batch(1)}, [&](pair_batch const& batch) {
    at::NoGradGuard no_grad;
    model->level.add_(1.0);
    at::AutoGradMode with_graph(true);
    return at::mse_loss(model->forward(batch.first), batch.second);
  });
  auto const scope = run.averaged();
  CHECK(model->mask.isinf().all().item<bool>());
  CHECK(model->level.item<float>() == 1.25f);
}

TEST_CASE("fit ends by an outcome where a policy that skips updates gives up, and the best weights are there to export") {
  using keel::reason;
  scratch_directory const directory;
  std::string reached;
  auto const train = [&]<class Policy>(Policy, double bad, reason why, std::string const& id) {
    struct recipe : keel::recipe<Policy, checkpoint::every<2_steps, checkpoint::keep_best, checkpoint::by_training_loss>> {};
    auto const model = make_small();
    torch::optim::SGD optimizer(model->parameters(), 0.01);
    auto const run_directory = directory / (reached += "i");
    keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = run_directory, .updates = 40})};
    std::vector<std::string> ends;
    run.on([&](keel::event::run_end const& e) { ends.push_back(e.result.gave_up() ? e.result.gave_up()->detail : "no"); });
    auto const loss_of = mean_squared_error(model);
    // After 24 sound ones: a window of losses is full.
    keel::outcome const ended = run.fit(std::vector(40, make_pair_batch(1)), [&](pair_batch const& batch) {
      return loss_of(batch) * (run.updates() >= 24 ? bad : 1.0);
    });
    REQUIRE(ended.gave_up());
    CHECK(ended.gave_up()->why == why);
    CHECK(ended.gave_up()->detail.find("[" + id + "]") == 0);
    CHECK(ends == std::vector<std::string>{ended.gave_up()->detail});
    CHECK(keel::exit_code_of(ended) == keel::exit_code::not_finite);
    CHECK(read_file(run_directory / "events.jsonl").find("\"failed\"") != std::string::npos);
    CHECK(run.updates() == 24);
    CHECK(keel::checkpoint_store(run_directory / "checkpoints").updates().back() == 24);
    CHECK(run.load_best().update <= 24);
    keel::save_safetensors(directory / "exported.safetensors", *model);
    for (at::Tensor const& one : model->parameters()) CHECK(one.isfinite().all().template item<bool>());
  };
  train(keel::nonfinite::skip<3>{}, NAN, reason::nonfinite_loss, "E08");
  train(keel::nonfinite::warn<2>{}, INFINITY, reason::nonfinite_loss, "E08");
  train(keel::nonfinite::rollback<2>{}, NAN, reason::nonfinite_loss, "E08");
  train(keel::spike::skip<keel::spike::window<16>, keel::spike::in_a_row<2>>{}, 1e6, reason::loss_spike, "E14");
}
