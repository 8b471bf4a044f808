// Trainers under shard::zero<3>: checkpoints, rollbacks, averages and unfrozen layers have the bits of those of replicas.
#include <atomic>
#include <cmath>

#include <keel/collective/collectives.hpp>
#include <keel/collective/in_process.hpp>
#include <keel/recompute/unit.hpp>
#include <keel/recompute/unit_parameters.hpp>

#include "../support.hpp"
#include "zero3_network.hpp"

using namespace keel_test;
using namespace keel_test::zero3;
using namespace keel::literals;

namespace {

struct saving {
  int ranks = 2;
  std::int64_t updates = 8;
  std::int64_t bad = -1;  ///< the batch that is NaN on rank 0, at its first pass
};

/// Trains in a run directory, and returns the parameters.
template <class Recipe>
std::vector<at::Tensor> train_and_save(std::filesystem::path const& directory, saving const& how, std::vector<double>* losses = nullptr) {
  std::vector<std::vector<at::Tensor>> all(static_cast<std::size_t>(how.ranks));
  std::atomic<bool> is_spoiled = how.bad < 0;
  keel::run_in_process(how.ranks, [&](keel::world_of_ranks const& world) {
    keel::seed<Recipe>();
    network model(0.1);
    keel::adamw optimizer(model.parameters(), 0.01);
    keel::trainer<Recipe> run{model, optimizer, world, {.run_directory = directory.string(), .updates = how.updates, .console_every = 0}};
    run.on([&](keel::event::update_end const& event) {
      if (losses != nullptr && world.rank() == 0) losses->push_back(event.loss);
    });
    auto const batches = [&](std::int64_t) {
      std::vector<at::Tensor> rows;
      for (std::int64_t i = 0; i < 20; ++i) rows.push_back(rows_of(i, world.rank()));
      return rows;
    };
    std::int64_t number = 0;
    run.fit(batches, [&](at::Tensor const& rows) {
      at::Tensor const given = number++ == how.bad && world.rank() == 0 && !is_spoiled.exchange(true) ? rows * NAN : rows;
      return model.loss(given);
    });
    if (world.size() > 1 && Recipe::shards_parameters) CHECK(keel::detail::unit_parameters::is_freed(model.layers[0]->wide->weight));
    auto const everything = run.gather_parameters();
    all[static_cast<std::size_t>(world.rank())] = copies_of(model.parameters());
  });
  for (auto const& one : all) CHECK(same_bits(one, all.front()));
  return all.front();
}

template <bool Shards, class... Policies>
struct saved : keel::recipe<keel::checkpoint::every<2_steps, keel::checkpoint::keep<10>>, keel::determinism::seeded<5>, Policies...> {
  static constexpr bool shards_parameters = Shards;
};
using saved3 = saved<true, keel::shard::zero<3>, skips>;
using saved2 = saved<false, keel::shard::zero<2>, skips>;
using saved0 = saved<false, keel::shard::replicate, skips>;

}  // namespace

TEST_CASE("a checkpoint of shards is whole: it resumes at any stage with the same bits, and at any number of ranks") {
  single_thread const threads;
  scratch_directory const whole_run, first, second, other;
  auto const expected = train_and_save<saved3>(whole_run.path(), {});
  CHECK(same_bits(train_and_save<saved0>(other.path(), {}), expected));
  train_and_save<saved3>(first.path(), {.updates = 4});
  std::filesystem::remove(second.path());
  std::filesystem::copy(first.path(), second.path(), std::filesystem::copy_options::recursive);
  CHECK(same_bits(train_and_save<saved3>(first.path(), {}), expected));
  std::vector<double> losses;
  train_and_save<saved3>(second.path(), {.ranks = 3}, &losses);
  CHECK(losses.size() == 4);
}

TEST_CASE("a rollback restores the shards of all ranks") {
  single_thread const threads;
  using rolls3 = saved<true, keel::shard::zero<3>, keel::nonfinite::rollback<1>>;
  using rolls0 = saved<false, keel::shard::replicate, keel::nonfinite::rollback<1>>;
  scratch_directory const first, second;
  auto const all = train_and_save<rolls3>(first.path(), {.bad = 5});
  CHECK(same_bits(train_and_save<rolls0>(second.path(), {.bad = 5}), all));
  CHECK(events_of(first.path(), "rolled_back").size() == 1);
}

namespace {

struct averaged_training {
  std::vector<at::Tensor> parameters, averages;
  std::vector<double> evaluated;
};

template <class Recipe>
averaged_training train_averaged(std::filesystem::path const& directory, int ranks, std::int64_t updates) {
  std::vector<averaged_training> all(static_cast<std::size_t>(ranks));
  keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
    keel::seed<Recipe>();
    network model(0.1);
    keel::adamw optimizer(model.parameters(), 0.01);
    keel::trainer<Recipe> run{model, optimizer, world, {.run_directory = directory.string(), .updates = updates, .console_every = 0}};
    averaged_training& found = all[static_cast<std::size_t>(world.rank())];
    std::vector<at::Tensor> rows;
    for (std::int64_t i = 0; i < 20; ++i) rows.push_back(rows_of(i, world.rank()));
    auto const loss_of = [&](at::Tensor const& x) { return model.loss(x); };
    run.evaluate_on(std::vector<at::Tensor>(rows.begin(), rows.begin() + 4), loss_of);
    run.on([&](keel::event::evaluated const& event) { found.evaluated.push_back(event.result[""]); });
    run.fit(rows, loss_of);
    {
      auto const averaged = run.averaged();
      if (world.size() > 1 && Recipe::shards_parameters) CHECK_THROWS_AS(averaged.tensors(), keel::error);
      auto const everything = run.gather_parameters();
      found.averages = copies_of(model.parameters());
    }
    auto const everything = run.gather_parameters();
    found.parameters = copies_of(model.parameters());
    {
      auto const averaged = run.averaged();
      CHECK(same_bits(copies_of(model.parameters()), found.averages));
    }
    CHECK(same_bits(copies_of(model.parameters()), found.parameters));
  });
  for (auto const& one : all) {
    CHECK(same_bits(one.averages, all.front().averages));
    CHECK(same_bits(one.parameters, all.front().parameters));
    CHECK(one.evaluated == all.front().evaluated);
  }
  CHECK_FALSE(same_bits(all.front().averages, all.front().parameters));
  return all.front();
}

using averages = keel::ema<0.9>;
using evaluates = keel::evaluation::every<2_steps, keel::evaluation::averaged>;

}  // namespace

TEST_CASE("averages of sharded parameters have the bits of those of replicas: evaluated, exported, and resumed at another stage") {
  single_thread const threads;
  using averaged3 = saved<true, keel::shard::zero<3>, skips, averages, evaluates>;
  using averaged0 = saved<false, keel::shard::replicate, skips, averages, evaluates>;
  for (int const ranks : {2, 3}) {
    scratch_directory const whole_run, sharded_run, first, second;
    auto const expected = train_averaged<averaged0>(whole_run.path(), ranks, 8), sharded = train_averaged<averaged3>(sharded_run.path(), ranks, 8);
    CHECK(same_bits(sharded.parameters, expected.parameters));
    CHECK(same_bits(sharded.averages, expected.averages));
    CHECK(sharded.evaluated == expected.evaluated);
    train_averaged<averaged3>(first.path(), ranks, 4);
    train_averaged<averaged0>(second.path(), ranks, 4);
    for (auto const& resumed : {train_averaged<averaged0>(first.path(), ranks, 8), train_averaged<averaged3>(second.path(), ranks, 8)}) {
      CHECK(same_bits(resumed.parameters, expected.parameters));
      CHECK(same_bits(resumed.averages, expected.averages));
    }
  }
}

TEST_CASE("a unit that is called first while the averages are in place is sharded with them, and has its parameters again afterwards") {
  single_thread const threads;
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    network model(0.0);
    keel::adamw optimizer(model.parameters(), 0.01);
    keel::step<cut<skips, averages>> step{model, optimizer, world};
    auto const loss = [&](std::vector<std::size_t> const& path) {
      step([&] { return model.loss(rows_of(0, world.rank()).slice(0, 0, 1), path); });
    };
    for (int i = 0; i < 3; ++i) loss({0, 1});
    at::Tensor const before = model.layers[2]->wide->weight.detach().clone();
    {
      auto const averaged = step.average().swap_in();
      at::NoGradGuard const no_grad;
      model.loss(rows_of(1, 0));
      CHECK(keel::detail::unit_parameters::is_freed(model.layers[2]->wide->weight));
    }
    {
      auto const everything = step.gather_parameters();
      CHECK(at::equal(model.layers[2]->wide->weight, before));
    }
    for (int i = 0; i < 3; ++i) loss({0, 1, 2});
  });
}

TEST_CASE("a unit that is unfrozen after it was sharded is trained from then on") {
  single_thread const threads;
  auto const run = [](auto recipe, int ranks) {
    std::vector<std::vector<at::Tensor>> all(static_cast<std::size_t>(ranks));
    keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
      network model(0.0, at::kFloat, true);
      keel::adamw optimizer(model.trained(), 0.01);
      keel::step<decltype(recipe)> step{model, optimizer, world};
      auto const train = [&] {
        for (std::int64_t i = 0; i < 4; ++i) {
          at::Tensor const rows = rows_of(i, world.rank());
          step([&] { return keel::weighted_loss{model.loss(rows), static_cast<double>(rows.size(0))}; });
        }
      };
      train();
      step.unfreeze(model.layers[0]->parameters(), 0.01);
      train();
      auto const everything = step.gather_parameters();
      auto& found = all[static_cast<std::size_t>(world.rank())];
      found = copies_of(model.parameters());
      auto const averaged = step.average().swap_in(model);
      for (at::Tensor const& one : copies_of(model.parameters())) found.push_back(one);
    });
    return all;
  };
  for (int const ranks : {1, 2, 3}) {
    auto const expected = run(whole<skips, keel::ema<0.9>>(), ranks), all = run(cut<skips, keel::ema<0.9>>(), ranks);
    for (auto const& one : all) CHECK(same_bits(one, expected.front()));
  }
}
