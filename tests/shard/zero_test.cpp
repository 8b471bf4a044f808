// shard::zero<1>: the optimizer's state in shares comes to the bits of shard::replicate, on no more memory than a share of it; and whatever
// else touches the optimizer meets its own parameters.
#include <ATen/Parallel.h>
#include <torch/nn/modules/conv.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>

#include <cmath>
#include <random>

#include <keel/collective/collectives.hpp>
#include <keel/collective/in_process.hpp>

#include "../collective/rank_error_messages.hpp"
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

template <class... Policies>
struct whole : keel::recipe<keel::shard::replicate, Policies...> {};
template <class... Policies>
struct cut : keel::recipe<keel::shard::zero<1>, Policies...> {};

using optimizer_of = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::optim::OptimizerParamGroup> const&)>;

template <class Optimizer, class Options>
optimizer_of made_of(Options const& options) {
  return [options](std::vector<torch::optim::OptimizerParamGroup> const& groups) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<Optimizer>(groups, options);
  };
}

/// Three layers in two groups, of which one lies channels last.
struct images : torch::nn::Module {
  torch::nn::Conv2d first{nullptr};
  torch::nn::Linear second{nullptr}, third{nullptr};
  explicit images(at::ScalarType dtype) {
    at::manual_seed(4);
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 10, 3)));
    second = register_module("second", torch::nn::Linear(40, 33));
    third = register_module("third", torch::nn::Linear(33, 2));
    to(dtype);
    at::NoGradGuard const no_grad;
    first->weight.set_data(first->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  std::vector<torch::optim::OptimizerParamGroup> groups() {
    return {torch::optim::OptimizerParamGroup(std::vector<at::Tensor>{second->weight, first->bias}),
            torch::optim::OptimizerParamGroup(std::vector<at::Tensor>{first->weight, second->bias, third->weight, third->bias})};
  }
  at::Tensor loss(at::Tensor const& x) { return third(second(first(x).flatten(1)).tanh()).square().mean(); }
};

at::Tensor rows_of(std::int64_t update, int rank, at::ScalarType dtype) {
  std::int64_t const rows = 1 + (update + rank) % 3;
  at::Tensor const all = at::arange(rows * 48).view({rows, 3, 4, 4}) * 0.013 + static_cast<double>(update * 7 + rank * 3);
  return all.sin().to(dtype);
}

struct ended {
  std::vector<at::Tensor> parameters;
  std::vector<double> norms;
  std::int64_t updates = 0, skipped = 0;
  std::int64_t state_bytes = 0;
};

std::int64_t bytes_of_state(torch::optim::Optimizer& optimizer) {
  std::int64_t bytes = 0;
  for (auto const& [key, held] : optimizer.state()) {
    if (auto const* const one = dynamic_cast<torch::optim::AdamWParamState const*>(held.get()))
      bytes += static_cast<std::int64_t>(one->exp_avg().nbytes() + one->exp_avg_sq().nbytes());
  }
  return bytes;
}

template <class Recipe>
std::vector<ended> train(int ranks, optimizer_of const& make, at::ScalarType dtype, std::int64_t updates = 8) {
  std::vector<ended> all(static_cast<std::size_t>(ranks));
  keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
    auto const model = std::make_shared<images>(dtype);
    auto const optimizer = make(model->groups());
    ended& found = all[static_cast<std::size_t>(world.rank())];
    keel::step<Recipe> step{*model, *optimizer, world};
    std::int64_t const windows = keel::config_of<Recipe>.accumulate.count;
    for (std::int64_t i = 0; i < updates * windows; ++i) {
      auto rows = rows_of(i, world.rank(), dtype);
      if (i == 4 && world.rank() == 1) rows = rows * NAN;
      auto const outcome = step([&] { return keel::weighted_loss{model->loss(rows), static_cast<double>(rows.size(0))}; });
      if (auto const* const updated = outcome.updated()) found.norms.push_back(updated->gradient_norm);
    }
    if constexpr (keel::step<Recipe>::has_average) {
      auto const averaged = step.average().swap_in();
      found.parameters = copies_of(model->parameters());
    } else {
      found.parameters = copies_of(model->parameters());
    }
    found.updates = step.updates();
    found.skipped = step.skipped();
    found.state_bytes = bytes_of_state(*optimizer);
  });
  return all;
}

template <class... Policies>
void compare(optimizer_of const& make, at::ScalarType dtype = at::kFloat) {
  for (int const ranks : {1, 2, 3, 4}) {
    auto const expected = train<whole<Policies...>>(ranks, make, dtype);
    auto const all = train<cut<Policies...>>(ranks, make, dtype);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      INFO("rank " << rank << " of " << ranks);
      CHECK(same_bits(all[rank].parameters, expected.front().parameters));
      CHECK(all[rank].norms == expected.front().norms);
      CHECK(all[rank].updates == expected.front().updates);
      CHECK(all[rank].skipped == expected.front().skipped);
    }
  }
}

struct single_thread {
  int const before = at::get_num_threads();
  single_thread() { at::set_num_threads(1); }
  ~single_thread() { at::set_num_threads(before); }
};

bool has(std::string const& words, std::string const& part) {
  UNSCOPED_INFO(words);
  return words.find(part) != std::string::npos;
}

using skips = keel::nonfinite::skip<5>;
using clips = keel::clip::global_norm<0.05>;

}  // namespace

TEST_CASE("shares of a parameter cover it, none overlaps another, and they come out even over all parameters") {
  std::mt19937_64 random(5);
  for (int i = 0; i < 2000; ++i) {
    int const size = 1 + static_cast<int>(random() % 9);
    std::int64_t const elements = static_cast<std::int64_t>(random() % (i % 2 == 0 ? 300 : 100000));
    std::size_t const index = random() % 1000;
    std::vector<int> covered(static_cast<std::size_t>(elements));
    for (int rank = 0; rank < size; ++rank) {
      auto const [begin, count] = keel::detail::compute_shard_range(elements, index, rank, size);
      REQUIRE(begin % (count > 0 ? 64 : 1) == 0);
      REQUIRE(count <= elements / size + 128);
      for (std::int64_t at = begin; at < begin + count; ++at) ++covered[static_cast<std::size_t>(at)];
    }
    REQUIRE(std::count(covered.begin(), covered.end(), 1) == elements);
  }
  // A thousand biases of a cache line each.
  for (int const size : {2, 3, 4, 7}) {
    for (int rank = 0; rank < size; ++rank) {
      std::int64_t sum = 0;
      for (std::size_t i = 0; i < 1000; ++i) sum += keel::detail::compute_shard_range(64, i, rank, size).count;
      CHECK(sum <= 64 * (1000 / size + 1));
    }
  }
}

TEST_CASE("with any element-wise optimizer, clipping, accumulation, dtype and number of ranks the bits are those of replicas") {
  single_thread const threads;
  auto const adamw = made_of<keel::adamw>(torch::optim::AdamWOptions(0.01));
  compare<skips>(adamw);
  compare<skips, clips, keel::ema<0.9>>(adamw);
  compare<skips, clips, keel::accumulate<3>>(adamw);
  compare<skips, keel::clip::value<0.01>>(adamw);
  compare<skips, keel::clip::global_norm<0.05, keel::clip::order<keel::clip::infinity>>>(adamw);
  compare<skips, keel::clip::adaptive<0.01>>(adamw);
  compare<skips, clips, keel::schedule::cosine<keel::schedule::total<8_steps>, keel::schedule::warmup<2_steps>>>(made_of<keel::adam>(torch::optim::AdamOptions(0.01).amsgrad(true)));
  compare<skips, clips>(made_of<keel::sgd>(torch::optim::SGDOptions(0.05).momentum(0.9).nesterov(true)));
  compare<skips, clips>(made_of<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.1)));
  compare<skips, clips>(made_of<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01)));
  compare<skips>(made_of<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01)));
  compare<skips>(made_of<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.01)));
}

TEST_CASE("of bf16 parameters the copies in fp32 are in shares too, and the bits are those of replicas") {
  single_thread const threads;
  compare<skips, clips>(made_of<keel::adamw>(torch::optim::AdamWOptions(0.01)), at::kBFloat16);
  compare<skips, clips, keel::accumulate<2>, keel::accept<"P06">>(made_of<keel::sgd>(torch::optim::SGDOptions(0.05).momentum(0.9)), at::kBFloat16);
  compare<skips, clips>(made_of<keel::adamw>(torch::optim::AdamWOptions(0.01)), at::kDouble);
}

TEST_CASE("state that is offloaded is offloaded in shares") {
  single_thread const threads;
  compare<skips, keel::offload::optimizer>(made_of<keel::adamw>(torch::optim::AdamWOptions(0.01)));
}

TEST_CASE("a rank has no more of the state than its share, and one process has all of it") {
  auto const make = made_of<keel::adamw>(torch::optim::AdamWOptions(0.01));
  std::int64_t const all = train<cut<>>(1, make, at::kFloat, 2).front().state_bytes;
  CHECK(all == train<whole<>>(2, make, at::kFloat, 2).front().state_bytes);
  for (int const ranks : {2, 3, 4}) {
    std::int64_t sum = 0;
    for (auto const& one : train<cut<>>(ranks, make, at::kFloat, 2)) {
      // 2,089 parameters: a cache line of each of the six is much here.
      CHECK(one.state_bytes < all / ranks + 6 * 64 * 8);
      sum += one.state_bytes;
    }
    CHECK(sum == all);
  }
}

TEST_CASE("outside of an update the optimizer has its own parameters, and its end leaves it as it would be without state") {
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    auto const model = std::make_shared<images>(at::kBFloat16);
    keel::adamw optimizer(model->groups(), torch::optim::AdamWOptions(0.01));
    auto const before = optimizer.param_groups()[1].params();
    {
      keel::step<cut<>> step{*model, optimizer, world};
      for (std::int64_t i = 0; i < 3; ++i) {
        step([&] { return model->loss(rows_of(i, world.rank(), at::kBFloat16)); });
        auto const& now = optimizer.param_groups()[1].params();
        for (std::size_t k = 0; k < now.size(); ++k) CHECK(now[k].is_same(before[k]));
        for (at::Tensor const& one : model->parameters()) CHECK(one.grad().sizes() == one.sizes());
      }
      CHECK(optimizer.state().size() == 6);
      optimizer.zero_grad();
    }
    CHECK(optimizer.state().empty());
    keel::step<cut<>> another{*model, optimizer, world};
    another([&] { return model->loss(rows_of(1, world.rank(), at::kBFloat16)); });
    CHECK(another.updates() == 1);
  });
}

TEST_CASE("an optimizer that has trained before goes on from its state, in shares") {
  single_thread const threads;
  for (at::ScalarType const dtype : {at::kFloat, at::kBFloat16}) {
    auto const train_on = [&](bool in_shares) {
      std::vector<std::vector<at::Tensor>> parameters(3);
      keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
        auto const model = std::make_shared<images>(dtype);
        keel::adamw optimizer(model->groups(), torch::optim::AdamWOptions(0.01));
        auto const updates = [&](auto& step, std::int64_t first) {
          for (std::int64_t i = first; i < first + 4; ++i) step([&] { return model->loss(rows_of(i, world.rank(), dtype)); });
        };
        {
          keel::step<whole<>> step{*model, optimizer, world};
          updates(step, 0);
        }
        if (in_shares) {
          keel::step<cut<>> step{*model, optimizer, world};
          updates(step, 4);
        } else {
          keel::step<whole<>> step{*model, optimizer, world};
          updates(step, 4);
        }
        parameters[static_cast<std::size_t>(world.rank())] = copies_of(model->parameters());
      });
      return parameters;
    };
    auto const expected = train_on(false), all = train_on(true);
    for (auto const& one : all) CHECK(same_bits(one, expected.front()));
  }
}

TEST_CASE("layers that are unfrozen and frozen again get their shares and lose them, and the bits are those of replicas") {
  single_thread const threads;
  auto const train_on = [&](auto recipe) {
    std::vector<std::vector<at::Tensor>> parameters(3);
    keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
      auto const model = std::make_shared<images>(at::kFloat);
      for (at::Tensor const& one : model->first->parameters()) one.requires_grad_(false);
      std::vector<at::Tensor> trained;
      for (at::Tensor const& one : model->parameters()) {
        if (one.requires_grad()) trained.push_back(one);
      }
      keel::adamw optimizer(trained, 0.01);
      keel::step<decltype(recipe)> step{*model, optimizer, world};
      std::int64_t i = 0;
      auto const updates = [&] {
        for (std::int64_t const end = i + 3; i < end; ++i) step([&] { return model->loss(rows_of(i, world.rank(), at::kFloat)); });
      };
      updates();
      step.unfreeze(model->first->parameters(), 0.02);
      updates();
      std::size_t const state = optimizer.state().size();
      CHECK(step.refreeze_last_group());
      CHECK(optimizer.state().size() == state - 2);
      updates();
      parameters[static_cast<std::size_t>(world.rank())] = copies_of(model->parameters());
    });
    return parameters;
  };
  auto const expected = train_on(whole<>()), all = train_on(cut<>());
  for (auto const& one : all) CHECK(same_bits(one, expected.front()));
}

TEST_CASE("a layer that cannot be cut is not unfrozen, and the training goes on as it was") {
  single_thread const threads;
  std::vector<std::vector<at::Tensor>> parameters(2);
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    auto const model = std::make_shared<images>(at::kFloat);
    // Every second row of a larger tensor.
    at::Tensor const with_holes = at::zeros({20, 3, 3, 3}).slice(0, 0, 20, 2);
    model->first->weight.set_data(with_holes);
    for (at::Tensor const& one : model->first->parameters()) one.requires_grad_(false);
    std::vector<at::Tensor> trained;
    for (at::Tensor const& one : model->parameters()) {
      if (one.requires_grad()) trained.push_back(one);
    }
    keel::adamw optimizer(trained, 0.01);
    keel::step<cut<>> step{*model, optimizer, world};
    std::int64_t i = 0;
    auto const update = [&] { step([&] { return model->loss(rows_of(i++, world.rank(), at::kFloat)); }); };
    update();
    CHECK_THROWS_WITH(step.unfreeze(model->first->parameters(), 0.02), Catch::Contains("[E11]") && Catch::Contains("is not dense in memory"));
    CHECK(optimizer.param_groups().size() == 1);
    CHECK_FALSE(model->first->weight.requires_grad());
    update();
    parameters[static_cast<std::size_t>(world.rank())] = copies_of(model->parameters());
  });
  CHECK(same_bits(parameters[0], parameters[1]));
}

TEST_CASE("what the program does beside the step with an optimizer in shares is an error that says what to do") {
  auto const with = [](std::function<void(keel::world_of_ranks const&, images&, keel::adamw&)> const& body) {
    return rank_error_messages(2, [&](keel::world_of_ranks const& world) {
      auto const model = std::make_shared<images>(at::kFloat);
      keel::adamw optimizer(model->groups(), torch::optim::AdamWOptions(0.01));
      body(world, *model, optimizer);
    });
  };
  for (auto const& words : with([](auto const& world, images& model, keel::adamw& optimizer) {
         keel::step<cut<>> step{model, optimizer, world};
         step([&] { return model.loss(rows_of(1, 0, at::kFloat)); });
         keel::step<cut<>> second{model, optimizer, world};
       }))
    CHECK(has(words, "[E11] the optimizer has state for tensors that are not its parameters, such as the shards of another step"));
  for (auto const& words : with([](auto const& world, images& model, keel::adamw& optimizer) {
         keel::step<cut<>> step{model, optimizer, world};
         for (std::int64_t i = 0; i < 3; ++i) {
           step([&] { return model.loss(rows_of(i, world.rank(), at::kFloat)); });
           if (i == 1) optimizer.step();
         }
       }))
    CHECK(has(words, "[E19] the optimizer has full state for second.weight"));
  for (auto const& words : with([](auto const& world, images& model, keel::adamw&) {
         at::NoGradGuard const no_grad;
         model.second->weight.set_data(at::empty({33, 80}).slice(1, 0, 40));
         keel::adamw optimizer(model.groups(), torch::optim::AdamWOptions(0.01));
         keel::step<cut<>> step{model, optimizer, world};
       }))
    CHECK(has(words, "[E11] parameter second.weight is not dense in memory, as keel::shard::zero requires"));
}

TEST_CASE("what one rank throws between the agreement and the end of an update ends all, who are not left waiting for its shares") {
  for (std::string const what : {"of a hook", "[E18]", "[E26]"}) {
    auto const words = rank_error_messages(3, [&](keel::world_of_ranks const& world) {
      auto const model = std::make_shared<images>(at::kFloat);
      keel::adamw optimizer(model->groups(), torch::optim::AdamWOptions(0.01));
      keel::trainer<cut<>> run{*model, optimizer, world, quiet({.updates = 5})};
      run.on([&](keel::event::gradients_ready const& event) {
        if (event.update != 2 || world.rank() != 1) return;
        if (what == "of a hook") throw std::runtime_error(what);
        optimizer.param_groups()[0].options().set_lr(what == "[E18]" ? NAN : 0.02);
      });
      std::vector<keel::row_numbers> const numbers{{0}, {1}, {2}, {3}, {4}, {5}};
      run.fit(numbers, [&](keel::row_numbers const& one) { return model->loss(rows_of(one.front(), world.rank(), at::kFloat)); });
    });
    CHECK(has(words[1], what));
    std::string const to_others = what == "[E26]" ? "[E26] rank 1 has the learning rates 0.02, 0.01 and rank 0 0.01, 0.01" : "rank 1 has given up: " + what;
    for (std::size_t const rank : {0u, 2u}) CHECK(has(words[rank], to_others));
  }
}

TEST_CASE("memory that runs out at any allocation of a rank ends the update of all, also where its shares are wanted") {
  single_thread const threads;
  keel::memory::budget budget;
  bool failed = true;
  std::int64_t named = 0;
  for (std::int64_t nth = 1; failed; ++nth) {
    REQUIRE(nth < 5000);
    std::vector<std::vector<at::Tensor>> parameters(2);
    auto const refused = budget.refused();
    auto const words = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
      auto const model = std::make_shared<images>(at::kBFloat16);
      keel::adamw optimizer(model->groups(), torch::optim::AdamWOptions(0.01));
      keel::step<cut<skips, clips>> step{*model, optimizer, world};
      keel::barrier(world);
      if (world.rank() == 1) budget.refuse_allocation(nth);
      keel::barrier(world);
      for (std::int64_t i = 0; i < 2; ++i) step([&] { return model->loss(rows_of(i, world.rank(), at::kBFloat16)); });
      if (world.rank() == 1) budget.refuse_allocation(0);
      parameters[static_cast<std::size_t>(world.rank())] = copies_of(model->parameters());
    });
    budget.refuse_allocation(0);
    failed = budget.refused() > refused;
    INFO("allocation " << nth << ": " << words[0] << " | " << words[1]);
    CHECK(words[0].empty() == words[1].empty());
    if (!failed) CHECK(words[0].empty());
    if (words[0].empty()) CHECK(same_bits(parameters[0], parameters[1]));
    named += words[0].empty() ? 0 : 1;
  }
  CHECK(named > 20);
}

TEST_CASE("an update of a rank that was kept shows again in one process, without the shares, and a replay leaves the run of all as it was") {
  using keeps = cut<skips, keel::incident::keep<>>;
  auto const batches_of = [](int rank) {
    std::vector<pair_batch> batches;
    for (std::uint64_t i = 0; i < 8; ++i) batches.push_back(make_pair_batch(2 * i + static_cast<std::uint64_t>(rank)));
    if (rank == 1) batches[4].first[2][0] = NAN;
    return batches;
  };
  auto const incident_in = [](std::filesystem::path const& root) {
    std::filesystem::path found;
    for (auto const& one : std::filesystem::directory_iterator(root / "incidents")) found = one.path();
    return found;
  };
  auto const train_in = [&](std::filesystem::path const& directory, bool replays) {
    std::vector<std::vector<at::Tensor>> parameters(2);
    keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
      auto const model = make_small(3, 0.0);
      keel::adamw optimizer(model->parameters(), 0.01);
      keel::trainer<keeps> run{*model, optimizer, world, quiet({.run_directory = directory, .updates = 7})};
      run.fit(batches_of(world.rank()), mean_squared_error(model));
      CHECK(run.skipped() == 1);
      if (world.rank() == 1 && replays) CHECK(!run.replay(incident_in(directory / "rank-1"), mean_squared_error(model)).is_finite());
      keel::barrier(world);
      run.step(make_pair_batch(40), mean_squared_error(model));
      parameters[static_cast<std::size_t>(world.rank())] = copies_of(model->parameters());
    });
    return parameters;
  };
  scratch_directory const directory, without;
  auto const expected = train_in(without, false);
  for (auto const& one : train_in(directory, true)) CHECK(same_bits(one, expected.front()));
  auto const model = make_small(9, 0.0);
  keel::adamw optimizer(model->parameters(), 0.01);
  scratch_directory const other;
  keel::trainer<keeps> run{*model, optimizer, keel::world_of_ranks(), quiet({.run_directory = other, .updates = 7})};
  CHECK(!run.replay(incident_in(directory / "rank-1"), mean_squared_error(model)).is_finite());
}
