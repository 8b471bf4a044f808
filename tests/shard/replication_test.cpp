// shard::replicate: what several ranks train is what one process trains on all of their data, to the same clipping, skips and schedule; and
// what happens on one rank is what happens on all.
#include <cmath>
#include <map>
#include <numeric>

#include <keel/collective/in_process.hpp>

#include "../collective/rank_error_messages.hpp"
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct plain : keel::recipe<keel::shard::replicate> {};
struct guarded : keel::recipe<keel::shard::replicate, keel::nonfinite::skip<5>, keel::clip::global_norm<0.05>, keel::ema<0.9>,
                              keel::schedule::cosine<keel::schedule::warmup<5_steps>>> {};
struct accumulating : keel::recipe<keel::shard::replicate, keel::accumulate<3>, keel::nonfinite::skip<5>, keel::clip::global_norm<0.05>> {};
struct by_value : keel::recipe<keel::shard::replicate, keel::clip::value<0.01>> {};

/// The model of one rank: layers of two groups, in float64 for an oracle.
struct trained_model {
  std::shared_ptr<small_module> model;
  std::unique_ptr<keel::adamw> optimizer;
  explicit trained_model(at::ScalarType dtype, double rate = 0.01) {
    at::manual_seed(11);
    model = make_small(4, 0.0);
    model->to(dtype);
    auto all = model->parameters();
    std::vector<at::Tensor> const first(all.begin(), all.begin() + 1), rest(all.begin() + 1, all.end());
    optimizer = std::make_unique<keel::adamw>(
        std::vector<torch::optim::OptimizerParamGroup>{torch::optim::OptimizerParamGroup(first), torch::optim::OptimizerParamGroup(rest)},
        rate);
  }
};

/// Rows of a micro-batch: what rank `rank` of `ranks` has, or all of them. Ragged: rank 0 has fewest, or in each second micro-batch most.
pair_batch rows_of(std::int64_t update, int rank, int ranks, bool ragged, at::ScalarType dtype) {
  if (ragged && update % 2 == 1) rank = ranks - 1 - rank;
  pair_batch whole;
  std::vector<at::Tensor> x, y;
  for (std::int64_t i = 3 * update; i < 3 * update + 3; ++i) {
    auto const one = make_pair_batch(static_cast<std::uint64_t>(i));
    x.push_back(one.first);
    y.push_back(one.second);
  }
  whole = {at::cat(x), at::cat(y)};
  std::int64_t const count = whole.first.size(0);
  auto const place = [&](int one) {
    return ragged ? count * one * (one + 1) / (ranks * (ranks + 1)) : count * one / ranks;
  };
  std::int64_t const begin = place(rank), end = place(rank + 1);
  return {whole.first.slice(0, begin, end).to(dtype), whole.second.slice(0, begin, end).to(dtype)};
}

struct training {
  std::vector<at::Tensor> parameters;
  std::vector<double> losses, rates;
  std::int64_t updates = 0, skipped = 0;
  double clipped = 0.0;
};

/// Trains `updates` windows; update `bad` has a NaN on rank `bad_on`.
template <class Recipe>
training train(keel::world_of_ranks const& world, bool ragged, at::ScalarType dtype, std::int64_t updates, std::int64_t bad = -1,
               int bad_on = 0) {
  constexpr std::int64_t windows = keel::config_of<Recipe>.accumulate.count;
  trained_model one(dtype);
  keel::step<Recipe> step{*one.model, *one.optimizer, world, updates};
  training found;
  for (std::int64_t i = 0; i < updates * windows; ++i) {
    auto batch = rows_of(i, world.rank(), world.size(), ragged, dtype);
    if (i / windows == bad && i % windows == windows / 2 && world.rank() == bad_on) batch.first = batch.first * NAN;
    auto const outcome = step(batch, [&](pair_batch const& of) {
      at::Tensor const mean = (one.model->forward(of.first) - of.second).square().mean();
      return keel::weighted_loss{mean, static_cast<double>(of.first.size(0))};
    });
    if (auto const* const updated = outcome.updated()) {
      found.losses.push_back(updated->loss);
      found.rates.push_back(updated->learning_rate);
    }
  }
  if constexpr (keel::step<Recipe>::has_average) {
    auto const averaged = step.average().swap_in();
    found.parameters = copies_of(one.model->parameters());
  } else {
    found.parameters = copies_of(one.model->parameters());
  }
  found.updates = step.updates();
  found.skipped = step.skipped();
  found.clipped = step.clip_fraction();
  return found;
}

/// Of each rank.
template <class Recipe>
std::vector<training> train_ranks(int ranks, bool ragged, at::ScalarType dtype, std::int64_t updates, std::int64_t bad = -1,
                                  int bad_on = 0, std::uint64_t seed = 1) {
  std::vector<training> all(static_cast<std::size_t>(ranks));
  keel::run_in_process(
      ranks,
      [&](keel::world_of_ranks const& world) {
        all[static_cast<std::size_t>(world.rank())] = train<Recipe>(world, ragged, dtype, updates, bad, bad_on);
      },
      {.seed = seed});
  return all;
}

bool is_near(training const& one, training const& other, double relative) {
  for (std::size_t i = 0; i < one.parameters.size(); ++i) {
    at::Tensor const a = one.parameters[i].to(at::kDouble), b = other.parameters[i].to(at::kDouble);
    double const difference = (a - b).norm().item<double>() / std::max(b.norm().item<double>(), 1e-12);
    UNSCOPED_INFO("parameter " << i << " differs by " << difference);
    if (!(difference <= relative)) return false;
  }
  return one.updates == other.updates && one.skipped == other.skipped && one.clipped == other.clipped && one.rates == other.rates;
}

template <class Recipe>
void compare(std::int64_t updates, std::int64_t bad = -1) {
  for (bool const ragged : {false, true}) {
    training const oracle = train<Recipe>(keel::world_of_ranks(), ragged, at::kDouble, updates, bad);
    for (int const ranks : {1, 2, 3, 4}) {
      CAPTURE(ragged, ranks, bad);
      auto const exact = train_ranks<Recipe>(ranks, ragged, at::kDouble, updates, bad, ranks - 1);
      auto const all = train_ranks<Recipe>(ranks, ragged, at::kFloat, updates, bad, ranks - 1);
      CHECK(is_near(exact.front(), oracle, 1e-9));
      CHECK(is_near(all.front(), oracle, 1e-5));
      for (auto const& one : all) CHECK(same_bits(one.parameters, all.front().parameters));
      for (auto const& one : all) CHECK(one.losses == all.front().losses);
      auto const again = train_ranks<Recipe>(ranks, ragged, at::kFloat, updates, bad, ranks - 1, 99);
      CHECK(same_bits(again.back().parameters, all.front().parameters));
    }
  }
}

bool has(std::string const& words, std::string const& part) {
  UNSCOPED_INFO(words);
  return words.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("one to four ranks have the parameters, clipping and rates of one process on all of their rows, ragged or not") {
  compare<plain>(50);
  compare<guarded>(50);
  compare<accumulating>(50);
  compare<by_value>(20);
}

TEST_CASE("a NaN on one rank is the skip of all, also inside a window, and leaves what one process would have") {
  compare<guarded>(20, 7);
  compare<accumulating>(20, 7);
}

TEST_CASE("parameters of bf16 add up in float32 and stay equal on all ranks") {
  auto const all = train_ranks<guarded>(3, true, at::kBFloat16, 30);
  for (auto const& one : all) CHECK(same_bits(one.parameters, all.front().parameters));
  CHECK(all.front().updates == 30);
  // Every batch is another one.
  auto const& losses = all.front().losses;
  CHECK(std::accumulate(losses.end() - 10, losses.end(), 0.0) < std::accumulate(losses.begin(), losses.begin() + 10, 0.0));
}

TEST_CASE("an exception in the loss, in a batch or behind an open micro-batch of one rank is told to all, who make no update and may go on") {
  for (auto const& [at, is_batch] : std::vector<std::pair<std::int64_t, bool>>{{0, false}, {1, false}, {4, false}, {1, true}, {3, true}}) {
    CAPTURE(at, is_batch);
    std::map<int, std::vector<at::Tensor>> parameters;
    std::map<int, std::string> caught;
    keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
      trained_model one(at::kFloat);
      keel::step<accumulating> step{*one.model, *one.optimizer, world};
      for (std::int64_t i = 0; i < 6; ++i) {
        try {
          auto batch = make_pair_batch(static_cast<std::uint64_t>(i));
          if (world.rank() == 1 && i == at && is_batch) batch = {batch.first.slice(0, 0, 0), batch.second.slice(0, 0, 0)};
          step(batch, [&](pair_batch const& batch) {
            if (world.rank() == 1 && i == at) throw std::runtime_error("of the program");
            return mean_squared_error(one.model)(batch);
          });
        } catch (std::exception const& thrown) {
          caught[world.rank()] = thrown.what();
          // All of them begin a window again together.
          i = at < 3 ? 2 : 5;
        }
      }
      parameters[world.rank()] = copies_of(one.model->parameters());
      CHECK(step.updates() == 1);
    });
    CHECK(has(caught[1], is_batch ? "[E06] a batch has no rows" : "of the program"));
    for (int const rank : {0, 2}) CHECK(has(caught[rank], "[E25] rank 1 threw; the update was discarded on all ranks: " + caught[1]));
    CHECK(same_bits(parameters[0], parameters[1]));
    CHECK(same_bits(parameters[0], parameters[2]));
  }
}

TEST_CASE("ranks with other recipes, parameters or rates are named with both, and rank 0's parameters are everyone's") {
  struct other : keel::recipe<keel::shard::replicate, keel::clip::global_norm<2.0>> {};
  for (auto const& words : rank_error_messages(3, [](keel::world_of_ranks const& world) {
         trained_model one(at::kFloat);
         if (world.rank() == 2) {
           keel::step<other>(*one.model, *one.optimizer, world);
         } else {
           keel::step<plain>(*one.model, *one.optimizer, world);
         }
       })) {
    CHECK(has(words, "[E24] rank 0 has \"clip"));
    CHECK(has(words, "where rank 2 has \"clip"));
  }
  for (auto const& words : rank_error_messages(2, [](keel::world_of_ranks const& world) {
         trained_model one(at::kFloat, world.rank() == 1 ? 0.02 : 0.01);
         keel::step<plain>(*one.model, *one.optimizer, world);
       }))
    CHECK(has(words, "rank 0 has \"the optimizer's group 0: lr 0.01\" where rank 1 has \"the optimizer's group 0: lr 0.02\""));
  for (auto const& words : rank_error_messages(2, [](keel::world_of_ranks const& world) {
         trained_model one(world.rank() == 1 ? at::kDouble : at::kFloat);
         keel::step<plain>(*one.model, *one.optimizer, world);
       }))
    CHECK(has(words, "Float"));
  std::map<int, std::vector<at::Tensor>> parameters;
  keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
    trained_model one(at::kFloat);
    at::NoGradGuard const no_grad;
    for (at::Tensor& parameter : one.model->parameters()) parameter.add_(world.rank());
    keel::step<plain> const step{*one.model, *one.optimizer, world};
    parameters[world.rank()] = copies_of(one.model->parameters());
  });
  trained_model const alone(at::kFloat);
  for (auto const& [rank, of_rank] : parameters) CHECK(same_bits(of_rank, copies_of(alone.model->parameters())));
}

TEST_CASE("a parameter that only some ranks use is updated on all, and a window that not all have is dropped by flush") {
  std::map<int, std::vector<at::Tensor>> parameters;
  keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
    at::manual_seed(2);
    torch::nn::Linear first(3, 1), second(3, 1);
    torch::nn::Sequential both(first, second);
    keel::adamw optimizer(both->parameters(), 0.01);
    keel::step<plain> step{*both, optimizer, world};
    at::Tensor const before = second->weight.detach().clone();
    for (int i = 0; i < 4; ++i) {
      step([&] {
        at::Tensor const x = at::ones({2, 3});
        return world.rank() == 1 ? (first(x) + second(x)).square().mean() : first(x).square().mean();
      });
    }
    CHECK(!at::equal(before, second->weight));
    parameters[world.rank()] = copies_of(both->parameters());
  });
  for (int const rank : {1, 2}) CHECK(same_bits(parameters[0], parameters[rank]));

  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    trained_model one(at::kFloat);
    keel::step<accumulating> step{*one.model, *one.optimizer, world};
    auto const loss_of = mean_squared_error(one.model);
    for (int i = 0; i < 4; ++i) step(make_pair_batch(3), loss_of);
    auto const both = step.flush();
    CHECK((both && both->updated() != nullptr));
    if (world.rank() == 0) step(make_pair_batch(4), loss_of);
    CHECK(!step.flush());
    CHECK(step.updates() == 2);
    CHECK(!step.has_open_update());
  });
}

TEST_CASE("the program's own backward passes are added up over the ranks, and one that is not closed is told to all") {
  std::map<int, std::vector<at::Tensor>> parameters;
  std::map<int, std::string> caught;
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    trained_model one(at::kFloat);
    keel::step<plain> step{*one.model, *one.optimizer, world};
    auto const batch = make_pair_batch(static_cast<std::uint64_t>(world.rank()));
    {
      auto window = step.open();
      at::Tensor const loss = mean_squared_error(one.model)(batch);
      loss.backward();
      window.close(loss);
    }
    parameters[world.rank()] = copies_of(one.model->parameters());
    try {
      auto window = step.open();
      at::Tensor const loss = mean_squared_error(one.model)(batch);
      loss.backward();
      if (world.rank() == 0) window.close(loss);
    } catch (keel::error const& thrown) {
      caught[world.rank()] = thrown.what();
    }
    CHECK(step.updates() == 1);
  });
  CHECK(same_bits(parameters[0], parameters[1]));
  CHECK(has(caught[0], "rank 1 threw; the update was discarded on all ranks: [E12] a micro-batch opened by step.open() was not closed"));
}

TEST_CASE("whatever collective a rank dies or hangs in, the others learn its number and go no further") {
  for (int const ranks : {2, 3}) {
    for (std::int64_t collective = 1;; ++collective) {
      std::vector<std::int64_t> updates(static_cast<std::size_t>(ranks));
      bool was_hit = false;
      auto const words = rank_error_messages(
          ranks,
          [&](keel::world_of_ranks const& world) {
            trained_model one(at::kFloat);
            keel::step<guarded> step{*one.model, *one.optimizer, world, 10};
            for (std::uint64_t i = 0; i < 3; ++i) {
              step(make_pair_batch(i), mean_squared_error(one.model));
              ++updates[static_cast<std::size_t>(world.rank())];
            }
          },
          {.seed = static_cast<std::uint64_t>(collective),
           .faults = {{ranks - 1, collective, collective % 2 == 0 ? keel::rank_fault::kind::kill : keel::rank_fault::kind::hang}}});
      for (int rank = 0; rank + 1 < ranks; ++rank) {
        if (words[static_cast<std::size_t>(rank)].empty()) continue;
        was_hit = true;
        CHECK(has(words[static_cast<std::size_t>(rank)], "rank " + std::to_string(ranks - 1) + (collective % 2 == 0 ? " is gone" : " has not called it")));
      }
      if (!was_hit) {
        CHECK(updates.front() == 3);
        CHECK(collective > 10);
        break;
      }
      CHECK(updates.front() < 3);
    }
  }
}
