// Ranks that would train, or have trained, something else than rank 0 learn it: at the start everything that must be equal is compared, in each
// update a sample of the parameters, and at the end of a run all of them.
#include <torch/optim/rmsprop.h>
#include <functional>
#include <memory>

#include <keel/collective/in_process.hpp>

#include "../collective/rank_error_messages.hpp"
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct replicated : keel::recipe<keel::shard::replicate> {};
struct sharded : keel::recipe<keel::shard::zero<1>> {};

bool has(std::string const& words, std::string const& part) { return words.find(part) != std::string::npos; }

using optimizer_for = std::function<std::unique_ptr<torch::optim::Optimizer>(small_module&, bool is_other)>;

/// What two ranks say that build the optimizers of `make`, where rank 1 is the other.
template <class Recipe, class Optimizer>
std::vector<std::string> started(std::function<std::unique_ptr<Optimizer>(small_module&, bool)> const& make) {
  return rank_error_messages(2, [&](keel::world_of_ranks const& world) {
    auto const model = make_small(3);
    auto const optimizer = make(*model, world.rank() == 1);
    keel::step<Recipe> const step{*model, *optimizer, world};
  });
}

template <class Optimizer, class Options>
void require_named(std::function<void(Options&)> const& change, std::string const& name) {
  INFO(name);
  std::function<std::unique_ptr<Optimizer>(small_module&, bool)> const make = [&](small_module& model, bool is_other) {
    Options options(0.01);
    if (is_other) change(options);
    return std::make_unique<Optimizer>(model.parameters(), options);
  };
  for (auto const& all : {started<replicated, Optimizer>(make), started<sharded, Optimizer>(make)}) {
    for (auto const& words : all) {
      INFO(words);
      CHECK(has(words, "[E24] rank 0 has \"the optimizer's group 0: " + name + " "));
      CHECK(has(words, "where rank 1 has \"the optimizer's group 0: " + name + " "));
    }
  }
}

/// Three ranks; before update `at` rank 1 does something by itself. The words of each, and by which update they came.
template <class Recipe>
std::vector<std::string> trained(std::int64_t updates, std::int64_t at,
                                 std::function<void(small_module&, keel::adamw&)> const& change, std::int64_t* last = nullptr) {
  return rank_error_messages(3, [&](keel::world_of_ranks const& world) {
    auto const model = make_small(3);
    keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
    keel::trainer<Recipe> run{*model, optimizer, world, quiet({.updates = updates})};
    run.on([&](keel::event::update_end const& event) {
      if (world.rank() == 1 && event.update == at) change(*model, optimizer);
      if (world.rank() == 0 && last != nullptr) *last = event.update;
    });
    std::vector<pair_batch> batches;
    for (std::int64_t i = 0; i < updates; ++i)
      batches.push_back(make_pair_batch(static_cast<std::uint64_t>(3 * i + world.rank())));
    run.fit(batches, mean_squared_error(model));
  });
}

}  // namespace

TEST_CASE("ranks with any other option of the optimizer, or another optimizer, are rejected with both values") {
  using torch::optim::AdamWOptions;
  using torch::optim::SGDOptions;
  require_named<keel::adamw, AdamWOptions>([](AdamWOptions& of) { of.weight_decay(0.5); }, "weight_decay");
  require_named<keel::adamw, AdamWOptions>([](AdamWOptions& of) { of.betas({0.8, 0.999}); }, "beta1");
  require_named<keel::adamw, AdamWOptions>([](AdamWOptions& of) { of.betas({0.9, 0.99}); }, "beta2");
  require_named<keel::adamw, AdamWOptions>([](AdamWOptions& of) { of.eps(1e-6); }, "eps");
  require_named<keel::adamw, AdamWOptions>([](AdamWOptions& of) { of.amsgrad(true); }, "amsgrad");
  require_named<keel::sgd, SGDOptions>([](SGDOptions& of) { of.momentum(0.9); }, "momentum");
  require_named<keel::sgd, SGDOptions>([](SGDOptions& of) { of.dampening(0.1); }, "dampening");
  require_named<keel::sgd, SGDOptions>([](SGDOptions& of) { of.weight_decay(0.1); }, "weight_decay");
  require_named<torch::optim::RMSprop, torch::optim::RMSpropOptions>([](torch::optim::RMSpropOptions& of) { of.alpha(0.5); },
                                                                     "alpha");
  for (auto const& words : rank_error_messages(2, [](keel::world_of_ranks const& world) {
         auto const model = make_small(3);
         if (world.rank() == 0) {
           keel::adamw optimizer(model->parameters(), 0.01);
           keel::step<sharded> const step{*model, optimizer, world};
         } else {
           torch::optim::AdamW optimizer(model->parameters(), 0.01);
           keel::step<sharded> const step{*model, optimizer, world};
         }
       }))
    CHECK(has(words, "rank 0 has \"optimizer "));
}

TEST_CASE("ranks with other groups or another length are rejected with both") {
  for (auto const& words : rank_error_messages(2, [](keel::world_of_ranks const& world) {
         auto const model = make_small(3);
         auto all = model->parameters();
         std::size_t const first = world.rank() == 0 ? 1 : 2;
         std::vector<torch::optim::OptimizerParamGroup> groups;
         groups.emplace_back(std::vector<at::Tensor>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first)));
         groups.emplace_back(std::vector<at::Tensor>(all.begin() + static_cast<std::ptrdiff_t>(first), all.end()));
         keel::adamw optimizer(groups, torch::optim::AdamWOptions(0.01));
         keel::step<sharded> const step{*model, optimizer, world};
       })) {
    CHECK(has(words,
              "[E24] rank 0 has \"the optimizer's group 1: amsgrad false\" where rank 1 has \"the optimizer's group 0: "
              "parameter first.bias\""));
  }
  for (auto const& words : rank_error_messages(2, [](keel::world_of_ranks const& world) {
         auto const model = make_small(3);
         keel::adamw optimizer(model->parameters(), 0.01);
         keel::trainer<sharded> const run{*model, optimizer, world, quiet({.updates = world.rank() == 0 ? 100 : 200})};
       }))
    CHECK(has(words, "[E24] rank 0 has \"updates 100\" where rank 1 has \"updates 200\""));
}

TEST_CASE("parameters that one rank changes by itself end the run of all before they train anything with them") {
  auto const scale = [](small_module& model, keel::adamw&) {
    at::NoGradGuard const no_grad;
    for (at::Tensor& one : model.parameters()) one.mul_(0.99);
  };
  std::int64_t last = 0;
  for (auto const& words : trained<sharded>(20, 5, scale, &last)) CHECK(has(words, "on rank 1 has diverged from rank 0"));
  CHECK(last == 5);
  for (auto const& words : trained<replicated>(20, 5, scale, &last)) CHECK(has(words, "on rank 1 has diverged from rank 0"));
  CHECK(last == 5);
  // One element of one parameter of four: within four updates.
  auto const one_element = [](small_module& model, keel::adamw&) {
    at::NoGradGuard const no_grad;
    model.second->bias[0].mul_(1.0 + 1e-6);
  };
  for (auto const& words : trained<replicated>(20, 5, one_element, &last))
    CHECK(has(words, "[E26] the parameter second.bias on rank 1 has diverged from rank 0"));
  CHECK(last < 10);
}

TEST_CASE("what differs behind the last update ends the run with words, and not as finished") {
  auto const buffers = [](small_module& model, keel::adamw&) {
    at::NoGradGuard const no_grad;
    model.second->bias[0].mul_(2.0);
  };
  for (auto const& words : trained<replicated>(20, 20, buffers))
    CHECK(has(words, "second.bias on rank 1 has diverged from rank 0"));
  // An option that changes on the way is found at the end at the latest.
  auto const decay = [](small_module&, keel::adamw& optimizer) {
    static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options()).weight_decay(0.5);
  };
  for (auto const& all : {trained<replicated>(20, 7, decay), trained<sharded>(20, 7, decay)}) {
    for (auto const& words : all) CHECK((has(words, "weight_decay 0.5") || has(words, "has diverged from rank 0")));
  }
  for (auto const& words : trained<sharded>(20, 5, [](small_module&, keel::adamw&) {})) CHECK(words.empty());
}
