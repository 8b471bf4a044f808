// Resumes of sharded runs by every way that a program has: at an earlier update, from another run, with weights, through a migration, and
// with layers that were unfrozen. Each has the bits of the same run with replicas.
#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <memory>
#include <mutex>

#include <keel/collective/collectives.hpp>
#include <keel/collective/in_process.hpp>
#include <keel/data/shuffled_batches.hpp>
#include <keel/recompute/unit.hpp>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

template <class Shard>
struct saving : keel::recipe<Shard, keel::checkpoint::every<2_steps, keel::checkpoint::keep<10>>, keel::determinism::seeded<5>, keel::ema<0.9>, keel::nonfinite::skip<20>> {
};
using replicas = saving<keel::shard::replicate>;
using shards1 = saving<keel::shard::zero<1>>;
using shards2 = saving<keel::shard::zero<2>>;
using shards3 = saving<keel::shard::zero<3>>;

/// A layer with a parameter that has no elements.
struct padded_layer : torch::nn::Module {
  torch::nn::Linear linear{nullptr};
  at::Tensor empty;
  explicit padded_layer(std::int64_t width) {
    linear = register_module("linear", torch::nn::Linear(width, width));
    empty = register_parameter("empty", at::zeros({0, 3}));
  }
  at::Tensor forward(at::Tensor const& x) { return linear(x) + empty.sum(); }
};

struct network : torch::nn::Module {
  torch::nn::Linear first{nullptr};
  std::shared_ptr<padded_layer> middle, head;
  /// `last`: the name of the last layer.
  explicit network(std::string const& last) {
    at::manual_seed(4);
    first = register_module("first", torch::nn::Linear(5, 12));
    middle = register_module("middle", std::make_shared<padded_layer>(12));
    head = register_module(last, std::make_shared<padded_layer>(12));
  }
  at::Tensor loss(at::Tensor const& x) {
    at::Tensor const y = keel::unit(middle, first(x).tanh());
    return (keel::unit(head, y.tanh()).mean(1, true) - x.sum(1, true)).square().mean();
  }
};

struct program {
  keel::trainer_options options;
  int ranks = 3;
  std::string last = "head";
  bool is_frozen = false;  ///< `middle` is in the first epoch, of three updates
  std::function<void(keel::migration&)> change;
  std::int64_t begins_at = 0;  ///< the update to which it resumes
};

template <class Recipe>
std::vector<at::Tensor> train(program const& of) {
  std::vector<at::Tensor> found;
  keel::run_in_process(of.ranks, [&](keel::world_of_ranks const& world) {
    keel::seed<Recipe>();
    network model(of.last);
    if (of.is_frozen) {
      for (at::Tensor& one : model.middle->parameters()) one.requires_grad_(false);
    }
    std::vector<at::Tensor> trained;
    for (at::Tensor const& one : model.parameters()) {
      if (one.requires_grad()) trained.push_back(one);
    }
    keel::adamw optimizer(trained, 0.01);
    keel::trainer<Recipe> run{model, optimizer, world, quiet(of.options)};
    if (of.change) run.migrate({"the program's", of.change});
    run.resume();
    CHECK(run.updates() == of.begins_at);
    keel::shuffled_batches const order({.rows = 36, .batch = 12 / world.size(), .seed = 3, .rank = world.rank(), .ranks = world.size()});
    run.on([&](keel::event::epoch_begin const& begin) {
      if (of.is_frozen && begin.epoch >= 1) run.unfreeze(*model.middle, 0.02);
    });
    run.fit(order, [&](keel::row_numbers const& numbers) {
      std::vector<at::Tensor> x;
      for (std::int64_t const row : numbers) x.push_back((at::arange(5) * 0.3 + static_cast<double>(row)).sin());
      return model.loss(at::stack(x));
    });
    auto const whole = run.gather_parameters();
    if (world.rank() == 0) found = copies_of(model.parameters());
  });
  return found;
}

/// Calls `run` with each recipe; what it returns must be the same.
template <class Run>
void with_each_stage(Run const& run) {
  int const threads = at::get_num_threads();
  at::set_num_threads(1);
  std::vector<at::Tensor> const expected = run.template operator()<replicas>();
  REQUIRE_FALSE(expected.empty());
  auto const stage = [&](char const* name, std::vector<at::Tensor> const& found) {
    INFO(name);
    CHECK(same_bits(found, expected));
  };
  stage("zero<1>", run.template operator()<shards1>());
  stage("zero<2>", run.template operator()<shards2>());
  stage("zero<3>", run.template operator()<shards3>());
  at::set_num_threads(threads);
}

}  // namespace

TEST_CASE("a sharded run resumes at an earlier update, and a new one from the checkpoint of another") {
  with_each_stage([]<class Recipe>() {
    scratch_directory const directory, other;
    train<Recipe>({.options = {.run_directory = directory, .updates = 6}});
    auto const again = train<Recipe>({.options = {.run_directory = directory, .updates = 6, .resume_at = 2}, .begins_at = 2});
    CHECK(std::filesystem::exists(directory / "checkpoints/step-000000006"));
    auto const from = train<Recipe>({.options = {.run_directory = other, .updates = 6, .resume_from = directory / "checkpoints/step-000000002"}, .begins_at = 2});
    CHECK(same_bits(from, again));
    return from;
  });
}

TEST_CASE("a sharded run begins with the weights of another, which has other ranks and another stage") {
  with_each_stage([]<class Recipe>() {
    scratch_directory const directory;
    train<shards3>({.options = {.run_directory = directory, .updates = 4}, .ranks = 4});
    scratch_directory const other;
    auto const found = train<Recipe>({.options = {.run_directory = other, .updates = 3, .weights_from = directory}});
    CHECK_FALSE(same_bits(found, train<Recipe>({.options = {.run_directory = scratch_directory().path(), .updates = 3}})));
    return found;
  });
}

TEST_CASE("a migration renames what is in slices, and sets a whole tensor in their place") {
  with_each_stage([]<class Recipe>() {
    scratch_directory const directory;
    train<Recipe>({.options = {.run_directory = directory, .updates = 2}, .last = "fc"});
    auto const rename = [](keel::migration& old) { old.rename("fc", "head"); };
    return train<Recipe>({.options = {.run_directory = directory, .updates = 4}, .change = rename, .begins_at = 2});
  });
  with_each_stage([]<class Recipe>() {
    scratch_directory const directory, other;
    train<Recipe>({.options = {.run_directory = directory, .updates = 2}});
    std::filesystem::remove(other.path());
    std::filesystem::copy(directory.path(), other.path(), std::filesystem::copy_options::recursive);
    auto const set_weight = [](keel::migration& old) {
      old.content().model.at("middle.linear.weight") = at::arange(144, at::kFloat).view({12, 12}).sin();
    };
    auto const changed = train<Recipe>({.options = {.run_directory = directory, .updates = 4}, .change = set_weight, .begins_at = 2});
    CHECK_FALSE(same_bits(changed, train<Recipe>({.options = {.run_directory = other, .updates = 4}, .begins_at = 2})));
    return changed;
  });
}

TEST_CASE("layers that were unfrozen are trained again where a sharded run resumes, before and after") {
  for (std::int64_t const cut : {2, 4}) {
    with_each_stage([&]<class Recipe>() {
      scratch_directory const uncut, directory;
      auto const whole = train<Recipe>({.options = {.run_directory = uncut, .updates = 6}, .is_frozen = true});
      train<Recipe>({.options = {.run_directory = directory, .updates = cut}, .is_frozen = true});
      auto const rest = train<Recipe>({.options = {.run_directory = directory, .updates = 6}, .is_frozen = true, .begins_at = cut});
      CHECK(same_bits(rest, whole));
      return whole;
    });
  }
}
