// Training that changes: layers unfrozen by epoch, batch sizes and modes that the program moves.
#include <cmath>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct saved : keel::recipe<keel::checkpoint::every<3_steps, keel::checkpoint::keep<8>>, keel::determinism::seeded<3>> {};
struct scheduled : keel::recipe<keel::checkpoint::every<3_steps>, keel::schedule::cosine<>, keel::ema<0.9>> {};
struct rolling : keel::recipe<keel::checkpoint::every<3_steps, keel::checkpoint::keep<8>>, keel::nonfinite::rollback<2>> {};

std::vector<pair_batch> batches_of(std::int64_t count = 5) {
  std::vector<pair_batch> all;
  // Of different sizes.
  for (std::int64_t i = 0; i < count; ++i) all.push_back(make_pair_batch(static_cast<std::uint64_t>(i), 3 + i % 4));
  return all;
}

/// The first layer is frozen until the third epoch.
template <class Recipe, class Optimizer>
std::vector<at::Tensor> train(std::filesystem::path const& directory, std::int64_t until) {
  at::manual_seed(1);
  auto const model = std::make_shared<small_module>();
  for (at::Tensor const& one : model->first->parameters()) one.requires_grad_(false);
  Optimizer optimizer(model->second->parameters(), 0.05);
  keel::trainer<Recipe> run{model, optimizer, quiet({.run_directory = directory, .updates = 25})};
  run.on([&](keel::event::epoch_begin const& begin) {
    if (begin.epoch >= 2) run.unfreeze(model->first, 0.01);
  });
  run.on([&](keel::event::update_end const& end) {
    CHECK(optimizer.param_groups().size() == (end.update > 10 ? 2 : 1));
    if (end.update == until) run.request_stop();
  });
  run.fit(batches_of(), mean_squared_error(model));
  return copies_of(model->parameters());
}

}  // namespace

TEST_CASE("a layer that is unfrozen in the third epoch trains as by hand, and a resume knows it wherever it is") {
  at::manual_seed(1);
  auto const model = std::make_shared<small_module>();
  for (at::Tensor const& one : model->first->parameters()) one.requires_grad_(false);
  torch::optim::AdamW optimizer(model->second->parameters(), torch::optim::AdamWOptions(0.05));
  auto const batches = batches_of();
  for (int epoch = 0; epoch < 5; ++epoch) {
    if (epoch == 2) {
      for (at::Tensor const& one : model->first->parameters()) one.requires_grad_(true);
      auto options = optimizer.param_groups().front().options().clone();
      options->set_lr(0.01);
      optimizer.add_param_group({model->first->parameters(), std::move(options)});
    }
    for (auto const& batch : batches) {
      optimizer.zero_grad();
      mean_squared_error(model)(batch).backward();
      optimizer.step();
    }
  }
  scratch_directory const directory;
  auto const whole = train<saved, torch::optim::AdamW>(directory / "whole", 99);
  CHECK(same_bits(whole, copies_of(model->parameters())));
  for (std::int64_t const at : {4, 9, 10, 11, 14, 20}) train<saved, torch::optim::AdamW>(directory / "cut", at);
  CHECK(same_bits(whole, train<saved, torch::optim::AdamW>(directory / "cut", 99)));
}

TEST_CASE("unfreezing goes with a schedule, an average and keel's optimizers") {
  scratch_directory const directory;
  auto const whole = train<scheduled, keel::adamw>(directory / "whole", 99);
  for (std::int64_t const at : {4, 10, 11, 17}) train<scheduled, keel::adamw>(directory / "cut", at);
  CHECK(same_bits(whole, train<scheduled, keel::adamw>(directory / "cut", 99)));
}

TEST_CASE("a rollback to before a layer was unfrozen freezes it again") {
  scratch_directory const directory;
  auto const model = make_small();
  for (at::Tensor const& one : model->first->parameters()) one.requires_grad_(false);
  keel::adamw optimizer(model->second->parameters(), 0.05);
  keel::trainer<rolling> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 20})};
  bool rolled_back = false;
  run.on([&](keel::event::rolled_back const& event) {
    rolled_back = true;
    CHECK(event.to == 3);
    CHECK(!model->first->weight.requires_grad());
    CHECK(optimizer.param_groups().size() == 1);
  });
  for (std::uint64_t i = 0; i < 9; ++i) {
    if (i == 4) run.unfreeze(model->first);
    run.step(make_pair_batch(i), [&, i](pair_batch const& batch) {
      at::Tensor const loss = mean_squared_error(model)(batch);
      return i == 5 || i == 6 ? loss * NAN : loss;
    });
  }
  CHECK(rolled_back);
}

TEST_CASE("a part unfreezes a layer, and its run resumes wherever it is") {
  auto const train_parts = [](std::filesystem::path const& directory, std::int64_t until) {
    at::manual_seed(1);
    auto const model = std::make_shared<small_module>(), other = std::make_shared<small_module>();
    for (at::Tensor const& one : model->first->parameters()) one.requires_grad_(false);
    torch::optim::AdamW optimizer(model->second->parameters(), torch::optim::AdamWOptions(0.05));
    keel::adamw other_optimizer(other->parameters(), 0.05);
    keel::run<saved> run{quiet({.run_directory = directory})};
    keel::part<keel::recipe<>> tuned{run, "tuned", model, optimizer};
    keel::part<keel::recipe<>> beside{run, "beside", other, other_optimizer};
    if (until == 0) {
      CHECK_THROWS_WITH(tuned.unfreeze(other->first), Catch::Matchers::Contains("[E11]") &&
                                                          Catch::Matchers::Contains("beside") &&
                                                          Catch::Matchers::Contains("tuned"));
      CHECK(optimizer.param_groups().size() == 1);
    }
    run.on([&](keel::event::epoch_begin const& begin) {
      if (begin.epoch >= 1) tuned.unfreeze(model->first, 0.01);
    });
    for (auto& batch : run.epochs(batches_of(), 3)) {
      tuned.update(batch, mean_squared_error(model));
      beside.update(batch, mean_squared_error(other));
      CHECK(optimizer.param_groups().size() == (run.cursor().epoch > 0 ? 2 : 1));
      if (run.cursor().consumed + 1 == until) run.request_stop();
    }
    run.finish();
    auto all = copies_of(model->parameters());
    for (at::Tensor const& one : copies_of(other->parameters())) all.push_back(one);
    return all;
  };
  scratch_directory const directory;
  auto const whole = train_parts(directory / "whole", 0);
  for (std::int64_t const at : {3, 5, 6, 7, 11}) train_parts(directory / "cut", at);
  CHECK(same_bits(whole, train_parts(directory / "cut", 99)));
}

TEST_CASE("a second group that the program made is not taken away by a checkpoint without it") {
  scratch_directory const directory;
  auto const train_once = [&](bool with_two_groups) {
    auto const model = std::make_shared<small_module>();
    torch::optim::AdamW optimizer(model->second->parameters(), torch::optim::AdamWOptions(0.05));
    if (with_two_groups) optimizer.add_param_group(torch::optim::OptimizerParamGroup(model->first->parameters()));
    if (!with_two_groups) {
      for (at::Tensor const& one : model->first->parameters()) one.requires_grad_(false);
    }
    keel::trainer<saved> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = with_two_groups ? 9 : 3})};
    run.fit(batches_of(), mean_squared_error(model));
  };
  train_once(false);
  CHECK_THROWS_AS(train_once(true), keel::checkpoint_error);
}

TEST_CASE("unfreezing in the middle of an update, and what is not of the model, are errors") {
  struct of_two : keel::recipe<keel::accumulate<2>> {};
  auto const model = make_small();
  for (at::Tensor const& one : model->first->parameters()) one.requires_grad_(false);
  keel::adamw optimizer(model->second->parameters(), 0.05);
  keel::trainer<of_two> run{model, optimizer, quiet()};
  run.step(make_pair_batch(0), mean_squared_error(model));
  CHECK_THROWS_AS(run.unfreeze(model->first), keel::error);
  run.step(make_pair_batch(1), mean_squared_error(model));
  torch::nn::Linear other(3, 1);
  CHECK_THROWS_AS(run.unfreeze(other), keel::error);
  CHECK(optimizer.param_groups().size() == 1);
  run.unfreeze(model->first);
  CHECK(optimizer.param_groups().size() == 2);
  CHECK(optimizer.param_groups()[1].options().get_lr() == 0.05);
}

TEST_CASE("a model that the program's own test left in evaluation mode is noticed at the next update") {
  struct plain : keel::recipe<> {};
  auto const with_dropout = std::make_shared<small_module>(0.5);
  with_dropout->to(device());
  keel::adamw optimizer(with_dropout->parameters(), 0.05);
  keel::trainer<plain> run{with_dropout, optimizer, quiet()};
  auto const loss_of = mean_squared_error(with_dropout);
  run.step(make_pair_batch(0), loss_of);
  run.evaluate(batches_of(), loss_of);
  run.step(make_pair_batch(1), loss_of);
  auto const before = copies_of(with_dropout->parameters());
  with_dropout->eval();
  try {
    run.step(make_pair_batch(2), loss_of);
    FAIL("an update in evaluation mode was taken");
  } catch (keel::error const& thrown) {
    CHECK(thrown.id() == "E23");
  }
  CHECK(same_bits(before, copies_of(with_dropout->parameters())));
  with_dropout->train();
  CHECK(run.step(make_pair_batch(2), loss_of).updated() != nullptr);

  // A head that trains on a frozen rest, and layers alone, are on purpose.
  with_dropout->eval();
  with_dropout->second->train();
  CHECK(run.step(make_pair_batch(3), loss_of).updated() != nullptr);
  with_dropout->train();
  with_dropout->drop->eval();
  CHECK(run.step(make_pair_batch(3), loss_of).updated() != nullptr);
}

TEST_CASE("a model that is in evaluation mode before the run makes no update, by any door") {
  struct plain : keel::recipe<> {};
  struct with_statistics : torch::nn::Module {
    with_statistics()
        : first(register_module("first", torch::nn::Linear(4, 8))), norm(register_module("norm", torch::nn::BatchNorm1d(8))) {}
    at::Tensor forward(at::Tensor const& x) { return norm(first(x)); }
    torch::nn::Linear first;
    torch::nn::BatchNorm1d norm;
  };
  auto const refused = [](std::string const& layer, auto const& run) {
    try {
      run();
      FAIL("an update in evaluation mode was taken");
    } catch (keel::error const& thrown) {
      CHECK(thrown.id() == "E23");
      CHECK(std::string(thrown.what()).find("(its " + layer + ")") != std::string::npos);
    }
  };
  auto const dropping = std::make_shared<small_module>(0.5);
  auto const normed = std::make_shared<with_statistics>();
  keel::adamw of_dropping(dropping->parameters(), 0.05), of_normed(normed->parameters(), 0.05);
  for (bool const is_before : {true, false}) {
    dropping->train(!is_before);
    normed->train(!is_before);
    keel::trainer<plain> run{dropping, of_dropping, quiet({.updates = 3})};
    keel::step<plain> step{*normed, of_normed};
    dropping->eval();
    normed->eval();
    auto const before = copies_of(dropping->parameters());
    refused("drop", [&] { run.fit(batches_of(), mean_squared_error(dropping)); });
    refused("drop", [&] { run.step(make_pair_batch(0), mean_squared_error(dropping)); });
    refused("norm", [&] { step([&] { return normed->forward(at::randn({6, 4})).square().mean(); }); });
    CHECK(same_bits(before, copies_of(dropping->parameters())));
  }
  // A model to which it does not matter.
  torch::nn::Linear plain_layer(4, 1);
  plain_layer->eval();
  keel::sgd optimizer(plain_layer->parameters(), 0.1);
  keel::step<plain> step{*plain_layer, optimizer};
  CHECK(step([&] { return plain_layer->forward(at::randn({6, 4})).square().mean(); }).updated() != nullptr);
}
