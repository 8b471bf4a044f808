// keel::shard_parameters: a model that is sharded while it is built trains the bits of one that is built whole, and is never whole on a rank.
#include <ATen/ops/zeros.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include <keel/checkpoint/sharded_safetensors.hpp>
#include <keel/collective/in_process.hpp>
#include <keel/memory/budget.hpp>
#include <keel/recompute/unit.hpp>
#include <keel/recompute/unit_parameters.hpp>
#include <keel/shard/shard_parameters.hpp>

#include "../collective/rank_error_messages.hpp"
#include "../support.hpp"
#include "zero3_network.hpp"

using namespace keel_test;
using namespace keel_test::zero3;
using namespace keel::literals;

namespace {

bool has(std::string const& words, char const* part) { return words.find(part) != std::string::npos; }

void shard_layers(network& model, keel::world_of_ranks const& world) {
  for (auto const& one : model.layers) keel::shard_parameters(*one, world);
}

struct setup {
  int ranks = 2;
  bool is_early = false;  ///< layers are sharded before the optimizer is made
  double drops = 0.1;
  at::ScalarType dtype = at::kFloat;
  bool freezes = false;
};

/// Six updates of a step; returns the parameters of rank 0.
template <class Recipe>
std::vector<at::Tensor> train(setup const& of) {
  std::vector<std::vector<at::Tensor>> all(static_cast<std::size_t>(of.ranks));
  keel::run_in_process(of.ranks, [&](keel::world_of_ranks const& world) {
    network model(of.drops, of.dtype, of.freezes);
    if (of.is_early) {
      // Those of rank 0 count.
      at::NoGradGuard const no_grad;
      if (world.rank() > 0) model.layers[1]->wide->weight.add_(1.0);
      shard_layers(model, world);
      CHECK(keel::detail::unit_parameters::is_freed(model.layers[2]->back->bias) == (world.size() > 1));
    }
    keel::adamw optimizer(model.trained(), 0.01);
    keel::step<Recipe> step{model, optimizer, world};
    at::manual_seed(7 + world.rank());
    for (std::int64_t i = 0; i < 12; ++i) step(rows_of(i, world.rank(), of.dtype), [&](at::Tensor const& x) { return model.loss(x); });
    auto const whole = step.gather_parameters();
    all[static_cast<std::size_t>(world.rank())] = copies_of(model.parameters());
  });
  for (auto const& one : all) CHECK(same_bits(one, all.front()));
  return all.front();
}

template <class... Policies>
void compare(setup of) {
  INFO("ranks " << of.ranks << ", frozen " << of.freezes << ", " << of.dtype);
  of.is_early = false;
  auto const expected = train<cut<skips, Policies...>>(of);
  of.is_early = true;
  CHECK(same_bits(train<cut<skips, Policies...>>(of), expected));
}

template <class... Policies>
struct saved : keel::recipe<keel::shard::zero<3>, keel::checkpoint::every<2_steps, keel::checkpoint::keep<10>>, keel::determinism::seeded<5>, skips, Policies...> {};

struct program {
  keel::trainer_options options;
  int ranks = 2;
  bool is_early = true;
};

/// Trains in a run directory, and returns the parameters of rank 0.
template <class Recipe>
std::vector<at::Tensor> train_and_save(program const& of) {
  std::vector<at::Tensor> found;
  keel::run_in_process(of.ranks, [&](keel::world_of_ranks const& world) {
    keel::seed<Recipe>();
    network model(0.1);
    if (of.is_early) shard_layers(model, world);
    keel::adamw optimizer(model.parameters(), 0.01);
    keel::trainer<Recipe> run{model, optimizer, world, quiet(of.options)};
    std::vector<at::Tensor> batches;
    for (std::int64_t i = 0; i < 20; ++i) batches.push_back(rows_of(i, world.rank()));
    auto const loss_of = [&](at::Tensor const& x) { return model.loss(x); };
    if constexpr (requires { Recipe::evaluates; }) run.evaluate_on(std::vector<at::Tensor>(batches.begin(), batches.begin() + 3), loss_of);
    run.fit(batches, loss_of);
    if constexpr (requires { Recipe::evaluates; }) run.load_best();
    auto const whole = run.gather_parameters();
    if (world.rank() == 0) found = copies_of(model.parameters());
  });
  return found;
}

struct evaluated : keel::recipe<keel::shard::zero<3>, keel::checkpoint::every<2_steps, keel::checkpoint::keep<10>, keel::checkpoint::keep_best, keel::checkpoint::by_evaluation_loss>,
                                keel::determinism::seeded<5>, keel::evaluation::every<2_steps>, keel::ema<0.9>> {
  static constexpr bool evaluates = true;
};

}  // namespace

TEST_CASE("a model whose layers are sharded as they are built trains the bits of one that is built whole") {
  single_thread const threads;
  for (int const ranks : {1, 2, 3, 4}) compare<>({.ranks = ranks});
  compare<keel::recompute::reentrant, keel::accumulate<2>, clips>({.ranks = 3});
  compare<keel::accumulate<3>>({.freezes = true});
  compare<keel::ema<0.9>>({.dtype = at::kBFloat16});
  compare<keel::ema<0.9>, clips>({.ranks = 3, .dtype = at::kDouble, .freezes = true});
}

TEST_CASE("a model that is sharded as it is built resumes, evaluates, keeps averages, and loads its best checkpoint") {
  single_thread const threads;
  auto const with = [](bool is_early) {
    scratch_directory const directory, other;
    auto const of = [&](std::int64_t updates, int ranks) {
      return program{.options = {.run_directory = directory.path(), .updates = updates}, .ranks = ranks, .is_early = is_early};
    };
    train_and_save<evaluated>(of(4, 2));
    train_and_save<evaluated>(of(6, 2));
    auto const whole = train_and_save<evaluated>(of(8, 2));
    return std::pair(whole, train_and_save<evaluated>(of(10, 3)));
  };
  auto const late = with(false), early = with(true);
  CHECK(same_bits(early.first, late.first));
  CHECK(same_bits(early.second, late.second));
}

TEST_CASE("a model that is sharded as it is built begins with the weights of a file, an index, a checkpoint and a run") {
  single_thread const threads;
  scratch_directory const run, files;
  std::filesystem::create_directories(files.path());
  train_and_save<saved<>>({.options = {.run_directory = run.path(), .updates = 4}});
  keel::tensor_map const weights = keel::read_weights(run.path());
  keel::save_safetensors(files / "whole.safetensors", weights);
  keel::save_sharded_safetensors(files.path(), "model", weights, 1000);
  keel::tensor_map other = weights;
  other["layer1.wide.weight"] = at::zeros({3, 3});
  keel::save_safetensors(files / "other.safetensors", other);
  auto const begins_with = [&](std::filesystem::path const& from, bool is_early) {
    scratch_directory const own;
    return train_and_save<saved<>>({.options = {.run_directory = own.path(), .updates = 2, .weights_from = from}, .ranks = 3, .is_early = is_early});
  };
  auto const expected = begins_with(files / "whole.safetensors", false);
  CHECK_FALSE(same_bits(expected, train_and_save<saved<>>({.options = {.run_directory = scratch_directory().path(), .updates = 2}, .ranks = 3})));
  for (std::filesystem::path const& from :
       {files / "whole.safetensors", files / "model.safetensors.index.json", run / "checkpoints/step-000000004", run.path()}) {
    INFO(from);
    CHECK(same_bits(begins_with(from, true), expected));
  }
  // An index names the tensors of its files that count.
  nlohmann::json index;
  for (auto const& [name, tensor] : weights) {
    if (name != "layer0.back.bias") index["weight_map"][name] = "whole.safetensors";
  }
  std::ofstream(files / "partial.index.json") << index;
  index["weight_map"]["layer0.back.bias"] = "missing.safetensors";
  std::ofstream(files / "missing.index.json") << index;
  auto const says = [&](char const* from, char const* part) {
    auto const messages = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
      network model(0.1);
      shard_layers(model, world);
      keel::adamw optimizer(model.parameters(), 0.01);
      keel::trainer<cut<skips>> trainer{model, optimizer, world, quiet({.updates = 1, .weights_from = files / from})};
      trainer.fit(std::vector<at::Tensor>{rows_of(0, 0)}, [&](at::Tensor const& x) { return model.loss(x); });
    });
    for (std::string const& one : messages) {
      INFO(one);
      CHECK(has(one, part));
    }
  };
  says("other.safetensors", "layer1.wide.weight is [3, 3]");
  says("partial.index.json", "has no tensor layer0.back.bias");
  says("missing.index.json", "missing.safetensors");
}

namespace {

/// Equal layers, each sharded once it is built if the world is given.
struct deep_network : torch::nn::Module {
  static constexpr std::int64_t width = 256, depth = 32;
  std::vector<torch::nn::Linear> layers;
  explicit deep_network(keel::world_of_ranks const* world) {
    at::manual_seed(4);
    for (int i = 0; i < depth; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(width, width)));
      if (world != nullptr) keel::shard_parameters(*layers.back(), *world);
    }
  }
  at::Tensor loss(at::Tensor x) {
    for (auto const& one : layers) x = keel::unit(one, x).tanh();
    return x.square().mean();
  }
};

/// The most memory of all ranks while one is built, trained, saved, described and resumed, in bytes of a whole model.
double peak_of_a_run(bool is_early, std::filesystem::path const& directory, std::filesystem::path const& weights, int ranks) {
  keel::memory::budget budget;
  std::int64_t const before = budget.allocated();
  budget.reset_peak();
  for (std::int64_t const updates : {2, 4}) {
    keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
      deep_network model(is_early ? &world : nullptr);
      keel::sgd optimizer(model.parameters(), 0.01);
      keel::trainer<saved<>> run{
          model, optimizer, world, quiet({.run_directory = directory, .updates = updates, .weights_from = updates == 2 ? weights : std::filesystem::path()})};
      std::vector<at::Tensor> const batches(8, at::ones({1, deep_network::width}));
      run.fit(batches, [&](at::Tensor const& x) { return model.loss(x); });
    });
  }
  constexpr double whole = 4.0 * deep_network::depth * (deep_network::width + 1) * deep_network::width;
  return static_cast<double>(budget.peak() - before) / whole;
}

}  // namespace

TEST_CASE("no rank ever has a model whole that is sharded as it is built: not to load, train, save, describe or resume it") {
  single_thread const threads;
  constexpr int ranks = 8;
  scratch_directory const early, late, other, files;
  std::filesystem::create_directories(files.path());
  auto const weights = files / "weights.safetensors";
  {
    deep_network model(nullptr);
    keel::save_safetensors(weights, model);
  }
  double const built_whole = peak_of_a_run(false, late.path(), weights, ranks), built_in_shards = peak_of_a_run(true, early.path(), weights, ranks),
               from_checkpoint = peak_of_a_run(true, other.path(), early.path(), ranks);
  CAPTURE(built_whole, built_in_shards, from_checkpoint);
  CHECK(built_whole > ranks);
  CHECK(from_checkpoint < 0.6 * ranks);
  // Shards, their gradients and the copy that is saved are a model each. The rest is the buffers of gathers and sums.
  CHECK(built_in_shards < 0.6 * ranks);
}

TEST_CASE("a later step continues with the shards that an earlier one has left") {
  single_thread const threads;
  auto const train_in = [](std::vector<int> const& updates) {
    std::vector<at::Tensor> found;
    keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
      network model(0.0);
      keel::sgd optimizer(model.parameters(), 0.05);
      std::int64_t i = 0;
      for (int const count : updates) {
        keel::step<cut<skips>> step{model, optimizer, world};
        for (int k = 0; k < count; ++k) step(rows_of(i++, world.rank()), [&](at::Tensor const& x) { return model.loss(x); });
      }
      keel::step<cut<skips>> last{model, optimizer, world};
      last.unshard_parameters();
      if (world.rank() == 0) found = copies_of(model.parameters());
    });
    return found;
  };
  CHECK(same_bits(train_in({2, 3, 1}), train_in({6})));
}

TEST_CASE("parameters that are sharded before there is a step are errors that name the way out") {
  single_thread const threads;
  auto const messages = [](auto const& run) {
    auto const all = rank_error_messages(2, run);
    CHECK(all.front() == all.back());
    return all.front();
  };
  CHECK(has(messages([](keel::world_of_ranks const& world) {
              network model(0.0);
              shard_layers(model, world);
              model.loss(rows_of(0, 0));
            }),
            "no step or trainer with keel::shard::zero<3> has its model"));
  CHECK(has(messages([](keel::world_of_ranks const& world) {
              network model(0.0);
              shard_layers(model, world);
              keel::adamw optimizer(model.parameters(), 0.01);
              keel::step<whole<skips>>{model, optimizer, world};
            }),
            "[E11] layer0.wide.weight was sharded by keel::shard_parameters or an earlier step"));
  CHECK(has(messages([](keel::world_of_ranks const& world) {
              network model(0.0);
              shard_layers(model, world);
              keel::adamw optimizer(model.parameters(), 0.01);
              keel::step<keel::recipe<skips>>{model, optimizer};
            }),
            "[E11] layer0.wide.weight was sharded by keel::shard_parameters or an earlier step"));
  CHECK(has(messages([](keel::world_of_ranks const& world) {
              network model(0.0);
              struct outside : torch::nn::Module {
                explicit outside(at::Tensor const& one) { register_parameter("weight", one); }
              } other(model.layers[1]->wide->weight);
              keel::shard_parameters(other, world);
              keel::adamw optimizer(model.parameters(), 0.01);
              keel::step<cut<skips>>{model, optimizer, world};
            }),
            "layer1.wide.weight was sharded with a module that is not in the model"));
  auto const unequal = rank_error_messages(2, [](keel::world_of_ranks const& world) {
    network model(0.0);
    keel::shard_parameters(*model.layers[static_cast<std::size_t>(world.rank())]->wide, world);
    keel::adamw optimizer(model.parameters(), 0.01);
    keel::step<cut<skips>>{model, optimizer, world};
  });
  for (std::string const& one : unequal) CHECK(has(one, "before the step"));
  auto const sizes = rank_error_messages(2, [](keel::world_of_ranks const& world) {
    torch::nn::Linear one(4, 4 + world.rank());
    keel::shard_parameters(*one, world);
  });
  for (std::string const& one : sizes) CHECK(has(one, "weight"));
}

namespace {

/// A unit whose weight has a second name outside of it.
struct tied_network : torch::nn::Module {
  torch::nn::Linear inner{nullptr}, last{nullptr};
  at::Tensor again;
  explicit tied_network(keel::world_of_ranks const* world) {
    at::manual_seed(4);
    last = register_module("a_last", torch::nn::Linear(6, 3));
    inner = register_module("inner", torch::nn::Linear(6, 6));
    if (world != nullptr) keel::shard_parameters(*inner, *world);
    again = register_parameter("tied", inner->weight);
  }
  at::Tensor loss(at::Tensor const& x) {
    return last(keel::unit(inner, [this](at::Tensor const& one) { return inner(one).tanh().matmul(again); }, x)).square().mean();
  }
};

}  // namespace

TEST_CASE("a parameter with two names is sharded once, and is whole again after any number of steps") {
  single_thread const threads;
  using recipe = cut<skips, keel::accept<"Z11">>;
  auto const trained = [](bool is_early) {
    std::vector<at::Tensor> found;
    keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
      tied_network model(is_early ? &world : nullptr);
      keel::sgd optimizer(model.parameters(), 0.05);
      for (int steps = 0; steps < 3; ++steps) {
        keel::step<recipe> step{model, optimizer, world};
        for (std::int64_t i = 0; i < 3; ++i) step([&] { return model.loss((at::arange(12).view({2, 6}) * 0.1 + static_cast<double>(i + world.rank())).sin()); });
        if (steps == 2) step.unshard_parameters();
      }
      if (world.rank() == 0) found = copies_of({model.inner->weight, model.inner->bias, model.again});
    });
    return found;
  };
  CHECK(same_bits(trained(true), trained(false)));
  auto const messages = rank_error_messages(2, [](keel::world_of_ranks const& world) {
    tied_network model(&world);
    keel::sgd optimizer(model.parameters(), 0.05);
    keel::step<cut<skips>>{model, optimizer, world};
  });
  for (std::string const& one : messages) CHECK(has(one, "[Z11]"));
}

TEST_CASE("an update after load_best begins with its weights, whose fp32 copies are those of no earlier update") {
  single_thread const threads;
  auto const train_on = []<class Shard>(Shard, bool is_early) {
    struct bf16_run : keel::recipe<Shard, keel::checkpoint::every<2_steps, keel::checkpoint::keep<10>, keel::checkpoint::keep_best, keel::checkpoint::by_evaluation_loss>,
                                   keel::evaluation::every<2_steps>> {};
    std::vector<at::Tensor> found;
    scratch_directory const directory;
    keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
      network model(0.0, at::kBFloat16);
      if (is_early) shard_layers(model, world);
      keel::adamw optimizer(model.parameters(), 0.05);
      keel::trainer<bf16_run> run{model, optimizer, world, quiet({.run_directory = directory.path(), .updates = 8})};
      std::vector<at::Tensor> batches;
      for (std::int64_t i = 0; i < 8; ++i) batches.push_back(rows_of(i, world.rank(), at::kBFloat16));
      auto const loss_of = [&](at::Tensor const& x) { return model.loss(x); };
      // Worse from update to update.
      double evaluated = 0.0;
      run.evaluate_on(std::vector<at::Tensor>(1, batches[0]), [&](at::Tensor const& x) { return model.loss(x) * 0.0 + ++evaluated; });
      run.fit(batches, loss_of);
      CHECK(run.load_best().update == 2);
      run.step(batches[0], loss_of);
      auto const whole = run.gather_parameters();
      if (world.rank() == 0) found = copies_of(model.parameters());
    });
    return found;
  };
  auto const expected = train_on(keel::shard::zero<2>(), false);
  CHECK(same_bits(train_on(keel::shard::zero<3>(), false), expected));
  CHECK(same_bits(train_on(keel::shard::zero<3>(), true), expected));
}

TEST_CASE("a graph from before an update is an error, also of parameters that were sharded as they were built") {
  single_thread const threads;
  auto const messages = rank_error_messages(2, [](keel::world_of_ranks const& world) {
    deep_network model(&world);
    keel::sgd optimizer(model.parameters(), 0.05);
    keel::step<cut<skips>> step{model, optimizer, world};
    at::Tensor const rows = at::ones({1, deep_network::width});
    auto const update = [&] { step([&] { return model.loss(rows); }); };
    update();
    at::Tensor const kept = model.loss(rows);
    update();
    kept.backward();
  });
  for (std::string const& one : messages) {
    INFO(one);
    CHECK(has(one, "modified in place"));
  }
}

TEST_CASE("shards that an exception may have left of different updates are not trained, and those of a live step are not sharded again") {
  single_thread const threads;
  std::vector<std::shared_ptr<network>> models;
  for (int rank = 0; rank < 2; ++rank) models.push_back(std::make_shared<network>(0.0));
  auto const train = [&](keel::world_of_ranks const& world, bool throws) {
    network& model = *models[static_cast<std::size_t>(world.rank())];
    keel::sgd optimizer(model.parameters(), 0.05);
    keel::step<cut<skips>> step{model, optimizer, world};
    for (int i = 0; i < 3; ++i) {
      step([&] {
        if (throws && i == 2 && world.rank() == 1) throw std::runtime_error("a fault of the program");
        return model.loss(rows_of(i, world.rank()));
      });
    }
  };
  for (std::string const& one : rank_error_messages(2, [&](keel::world_of_ranks const& world) { train(world, true); })) CHECK(has(one, "a fault of the program"));
  for (std::string const& one : rank_error_messages(2, [&](keel::world_of_ranks const& world) { train(world, false); })) CHECK(has(one, "that an exception has ended"));
  for (std::string const& one : rank_error_messages(2, [&](keel::world_of_ranks const& world) {
         network model(0.0);
         keel::sgd optimizer(model.parameters(), 0.05);
         keel::step<cut<skips>> step{model, optimizer, world};
         keel::shard_parameters(*model.layers[0], world);
       }))
    CHECK(has(one, "[E11] a module is sharded by keel::shard_parameters while a step"));
}

TEST_CASE("memory that runs out while a module is sharded leaves it whole on all ranks") {
  single_thread const threads;
  keel::memory::budget budget;
  for (std::int64_t nth = 1;; ++nth) {
    auto const refused = budget.refused();
    std::vector<bool> is_whole(2), threw(2);
    keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
      auto const rank = static_cast<std::size_t>(world.rank());
      layer one(12, 0.0);
      // Not contiguous, but dense.
      one.wide->weight.set_data(one.wide->weight.detach().t().contiguous().t());
      if (rank == 1) budget.refuse_allocation(nth);
      try {
        keel::shard_parameters(one, world);
      } catch (std::exception const& thrown) {
        UNSCOPED_INFO(thrown.what());
        threw[rank] = true;
      }
      budget.refuse_allocation(0);
      is_whole[rank] = !keel::detail::unit_parameters::is_freed(one.wide->weight) && !keel::detail::unit_parameters::is_freed(one.back->bias);
    });
    bool const has_failed = budget.refused() > refused;
    INFO("allocation " << nth);
    CHECK(threw == std::vector<bool>(2, has_failed));
    CHECK(is_whole == std::vector<bool>(2, has_failed));
    if (!has_failed) break;
    REQUIRE(nth < 100);
  }
}
