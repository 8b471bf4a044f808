// The sums of gradients that begin while the backward pass runs: they are those that follow it, whatever a backward pass does.
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>

#include <keel/collective/collectives.hpp>
#include <keel/collective/in_process.hpp>
#include <keel/gradients/saved_gradients.hpp>
#include <keel/memory/budget.hpp>

#include "../collective/rank_error_messages.hpp"
#include "../support.hpp"

using namespace keel_test;

namespace {

struct plain : keel::recipe<keel::shard::replicate, keel::nonfinite::skip<9>> {};
struct accumulating : keel::recipe<keel::shard::replicate, keel::accumulate<2>, keel::nonfinite::skip<9>> {};
struct in_shares : keel::recipe<keel::shard::zero<1>, keel::nonfinite::skip<9>> {};

constexpr std::int64_t width = 512;  // a layer is a bucket
constexpr int layers = 6;

/// One layer behind the other; `used[i]` of them.
struct tower : torch::nn::Module {
  std::vector<torch::nn::Linear> all;
  tower() {
    at::manual_seed(5);
    for (int i = 0; i < layers; ++i) all.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(width, width)));
  }
  at::Tensor forward(at::Tensor x, std::vector<bool> const& used = {}) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (used.empty() || used[i]) x = at::relu(all[i]->forward(x)) + x;
    }
    return x;
  }
};

at::Tensor rows_of(int rank, int update) {
  auto const generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(100 * update + rank + 1));
  return at::randn({4, width}, generator);
}

/// What becomes of a call: its exception, or nothing.
std::string words_of(std::function<void()> const& call) {
  try {
    call();
    return "";
  } catch (std::exception const& thrown) {
    return thrown.what();
  }
}

/// The parameters of each rank behind two updates of rows of its own.
using loss_of_tower = std::function<at::Tensor(tower&, at::Tensor const&)>;
template <class Recipe>
std::vector<std::vector<at::Tensor>> trained(int ranks, loss_of_tower const& loss_of, bool manual_backward = false) {
  std::vector<std::vector<at::Tensor>> parameters(static_cast<std::size_t>(ranks));
  keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
    tower model;
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    keel::step<Recipe> step{model, optimizer, world};
    for (int i = 0; i < 2 * static_cast<int>(keel::config_of<Recipe>.accumulate.count); ++i) {
      at::Tensor const rows = rows_of(world.rank(), i);
      if (manual_backward) {
        auto window = step.open();
        at::Tensor const loss = loss_of(model, rows);
        loss.backward();
        window.close(loss);
      } else {
        step(rows, [&](at::Tensor const& x) { return loss_of(model, x); });
      }
    }
    parameters[static_cast<std::size_t>(world.rank())] = copies_of(model.parameters());
  });
  return parameters;
}

at::Tensor plain_loss(tower& model, at::Tensor const& rows) { return model.forward(rows).square().mean(); }

/// Hands its input on; its backward pass runs one more through a layer, as a block that is computed again does.
struct once_more : torch::autograd::Function<once_more> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor const& x, tower* model, std::int64_t layer) {
    context->saved_data["model"] = reinterpret_cast<std::int64_t>(model);
    context->saved_data["layer"] = layer;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    auto& model = *reinterpret_cast<tower*>(context->saved_data["model"].toInt());
    at::AutoGradMode const records(true);
    auto const layer = static_cast<std::size_t>(context->saved_data["layer"].toInt());
    model.all[layer]->forward(at::ones({1, width})).mean().backward();
    return {gradients[0], at::Tensor(), at::Tensor()};
  }
};

}  // namespace

TEST_CASE("sums begin while the backward pass still runs, and the agreement before it") {
  at::set_num_threads(1);
  std::vector<std::int64_t> at_first_layer(2), before(2), after(2);
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    auto const rank = static_cast<std::size_t>(world.rank());
    tower model;
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    keel::step<plain> step{model, optimizer, world};
    step(rows_of(world.rank(), 0), [&](at::Tensor const& x) {
      before[rank] = world.collectives();
      at::Tensor const y = model.all[0]->forward(x);
      // Called when the backward pass has come through all other layers.
      y.register_hook([&](at::Tensor const&) { at_first_layer[rank] = world.collectives(); });
      return model.forward(y, {false, true, true, true, true, true}).square().mean();
    });
    after[rank] = world.collectives();
  });
  for (std::size_t const rank : {0u, 1u}) {
    // The agreement and the buckets of the layers behind; that of the second layer has the bias of the first.
    CHECK(at_first_layer[rank] - before[rank] == 1 + (layers - 2));
    CHECK(after[rank] - before[rank] == 1 + layers);
  }
}

TEST_CASE("sums that begin in the backward pass have the bits of those that follow it, at any number of ranks") {
  at::set_num_threads(1);
  for (int const ranks : {2, 3, 4}) {
    auto const during = trained<plain>(ranks, plain_loss), behind = trained<plain>(ranks, plain_loss, true);
    auto const accumulated = trained<accumulating>(ranks, plain_loss), accumulated_behind = trained<accumulating>(ranks, plain_loss, true);
    auto const shares = trained<in_shares>(ranks, plain_loss);
    for (std::size_t rank = 0; rank < during.size(); ++rank) {
      INFO(ranks << " ranks, rank " << rank);
      CHECK(same_bits(during[rank], during[0]));
      CHECK(same_bits(during[rank], behind[rank]));
      CHECK(same_bits(shares[rank], during[rank]));
      CHECK(same_bits(accumulated[rank], accumulated_behind[rank]));
    }
  }
}

TEST_CASE("a gradient that the backward pass adds to after its sum has begun is summed in a second round, with the same bits on all ranks") {
  at::set_num_threads(1);
  for (int const which : {-1, 0, 1}) {
    std::vector<std::vector<at::Tensor>> found(2);
    constexpr int runs = 6;
    for (int attempt = 0; attempt <= runs; ++attempt) {
      bool const behind = attempt == runs;
      keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
        auto const rank = static_cast<std::size_t>(world.rank());
        tower model;
        torch::optim::SGD optimizer(model.parameters(), 0.1);
        keel::step<plain> step{model, optimizer, world};
        auto const loss_of = [&](at::Tensor const& x) {
          at::Tensor y = model.all[0]->forward(x);
          if (which < 0 || which == world.rank()) y = once_more::apply(y, &model, 5);
          return model.forward(y, {false, true, true, true, true, true}).square().mean();
        };
        if (behind) {
          auto window = step.open();
          at::Tensor const loss = loss_of(rows_of(world.rank(), 0));
          loss.backward();
          window.close(loss);
        } else {
          step(rows_of(world.rank(), 0), loss_of);
        }
        auto const now = copies_of(model.parameters());
        if (attempt > 0 && !behind) CHECK(same_bits(found[rank], now));
        for (std::size_t i = 0; behind && i < now.size(); ++i) CHECK(at::allclose(found[rank][i], now[i], 1e-6, 1e-7));
        found[rank] = now;
      }, {.seed = static_cast<std::uint64_t>(attempt + 1)});
    }
    CHECK(same_bits(found[0], found[1]));
  }
}

TEST_CASE("gradients are in the memory of their sums during an update, and no second copy is allocated") {
  at::set_num_threads(1);
  static constexpr std::int64_t wide = 512;
  auto const allocated_after_first_micro_batch = [](int ranks) {
    keel::memory::budget budget;
    std::int64_t const before = budget.allocated();
    std::int64_t held = 0;
    keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
      torch::nn::Sequential model;
      for (int i = 0; i < 8; ++i) model->push_back(torch::nn::Linear(wide, wide));
      torch::optim::SGD optimizer(model->parameters(), 0.01);
      keel::step<accumulating> step{*model, optimizer, world};
      auto const loss_of = [&] { return model->forward(at::ones({1, wide})).square().mean(); };
      for (int i = 0; i < 4; ++i) step(loss_of);
      step(loss_of);
      keel::barrier(world);
      if (world.rank() == 0) held = budget.allocated() - before;
      keel::barrier(world);
      step(loss_of);
    });
    return static_cast<double>(held) / ranks;
  };
  // Parameters and gradients.
  double const expected = 2.0 * 8 * (wide * wide + wide) * 4;
  for (int const ranks : {1, 2, 3}) {
    INFO(ranks << " ranks");
    CHECK(allocated_after_first_micro_batch(ranks) < 1.02 * expected);
  }
}

TEST_CASE("an exception anywhere in the backward pass of one rank ends the update of all, who have its words and can go on") {
  at::set_num_threads(1);
  for (int thrower = 0; thrower < 3; ++thrower) {
    for (std::size_t layer = 0; layer < layers; ++layer) {
      INFO("rank " << thrower << ", layer " << layer);
      std::vector<std::string> words(3);
      std::vector<std::vector<at::Tensor>> before(3), between(3), after(3);
      keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
        auto const rank = static_cast<std::size_t>(world.rank());
        tower model;
        torch::optim::SGD optimizer(model.parameters(), 0.1);
        keel::step<plain> step{model, optimizer, world};
        before[rank] = copies_of(model.parameters());
        words[rank] = words_of([&] {
          step(rows_of(world.rank(), 0), [&](at::Tensor const& x) {
            at::Tensor y = x;
            for (std::size_t i = 0; i < layers; ++i) {
              y = at::relu(model.all[i]->forward(y)) + y;
              if (i == layer && world.rank() == thrower)
                y.register_hook([](at::Tensor const&) { throw std::runtime_error("of the program"); });
            }
            return y.square().mean();
          });
        });
        between[rank] = copies_of(model.parameters());
        step(rows_of(world.rank(), 1), [&](at::Tensor const& x) { return plain_loss(model, x); });
        after[rank] = copies_of(model.parameters());
      });
      for (int rank = 0; rank < 3; ++rank) {
        auto const at = static_cast<std::size_t>(rank);
        CHECK(words[at].find("of the program") != std::string::npos);
        if (rank != thrower) CHECK(words[at].find("[E25] rank " + std::to_string(thrower) + " threw") == 0);
        CHECK(same_bits(before[at], between[at]));
        CHECK(same_bits(after[at], after[0]));
        CHECK(!same_bits(after[at], between[at]));
      }
    }
  }
}

/// In its second update a gradient of rank 1 fits no sum: of a bucket that begins behind it, or of one that has begun. What each rank threw.
template <class Environment, class Optimizer>
std::vector<std::string> words_of_a_gradient_that_fits_no_sum(bool has_begun) {
  std::vector<std::string> caught(3);
  std::vector<std::vector<at::Tensor>> parameters(3);
  keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
    auto const rank = static_cast<std::size_t>(world.rank());
    tower model;
    Optimizer optimizer(model.parameters(), torch::optim::SGDOptions(0.1));
    keel::step<plain, Environment> step{model, optimizer, world};
    bool spoils = false;
    at::Tensor const last = has_begun ? model.all[3]->weight : model.all[3]->bias;
    at::Tensor const spoiled = has_begun ? model.all[3]->bias : model.all[4]->weight;
    last.register_hook([&](at::Tensor const&) {
      if (spoils) spoiled.mutable_grad() = at::zeros({3});
    });
    for (int i = 0; i < 3; ++i) {
      spoils = rank == 1 && i == 1;
      std::string const words = words_of([&] { step(rows_of(world.rank(), i), [&](at::Tensor const& x) { return plain_loss(model, x); }); });
      if (i == 1) caught[rank] = words;
      INFO(words.substr(0, 600));
      if (i != 1) CHECK(words.empty());
    }
    step.settle();
    CHECK(step.updates() == 2);
    parameters[rank] = copies_of(model.parameters());
  });
  for (auto const& one : parameters) CHECK(same_bits(one, parameters[0]));
  return caught;
}

TEST_CASE("a gradient of one rank that fits no sum ends the update of all, who can go on, on their hosts or on devices") {
  struct on_a_device : keel::step_environment {
    bool decides_on_device(at::DeviceType) const override { return true; }
  };
  at::set_num_threads(1);
  for (auto const& words : {words_of_a_gradient_that_fits_no_sum<keel::step_environment, torch::optim::SGD>(false),
                            words_of_a_gradient_that_fits_no_sum<keel::step_environment, torch::optim::SGD>(true),
                            words_of_a_gradient_that_fits_no_sum<on_a_device, keel::sgd>(false),
                            words_of_a_gradient_that_fits_no_sum<on_a_device, keel::sgd>(true)}) {
    for (std::string const& one : words) {
      INFO(one);
      CHECK(one.find(" (3)") != std::string::npos);
    }
    for (std::size_t const rank : {0u, 2u}) {
      CHECK(words[rank].find("[E25] rank 1 threw") == 0);
      // Without where in LibTorch that was.
      CHECK(words[rank].find('\n') == std::string::npos);
    }
  }
}

TEST_CASE("several ranks that throw in one backward pass end the update each with its own words") {
  at::set_num_threads(1);
  std::vector<std::string> words(4);
  keel::run_in_process(4, [&](keel::world_of_ranks const& world) {
    tower model;
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    keel::step<plain> step{model, optimizer, world};
    words[static_cast<std::size_t>(world.rank())] = words_of([&] {
      step(rows_of(world.rank(), 0), [&](at::Tensor const& x) {
        at::Tensor const y = model.forward(x);
        if (world.rank() % 2 == 1)
          y.register_hook([&](at::Tensor const&) { throw std::runtime_error("of rank " + std::to_string(world.rank())); });
        return y.square().mean();
      });
    });
  });
  CHECK(words[1] == "of rank 1");
  CHECK(words[3] == "of rank 3");
  for (std::size_t const rank : {0u, 2u}) CHECK(words[rank] == "[E25] rank 1 threw; the update was discarded on all ranks: of rank 1");
}

TEST_CASE("layers that only some ranks use, and layers that are frozen between updates, are added up where any rank has a gradient") {
  at::set_num_threads(1);
  std::vector<std::vector<at::Tensor>> first(2), last(2);
  std::vector<std::vector<bool>> has(2);
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    auto const rank = static_cast<std::size_t>(world.rank());
    tower model;
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    keel::step<plain> step{model, optimizer, world};
    std::vector<bool> const used =
        world.rank() == 0 ? std::vector<bool>{true, false, true, false, true, false} : std::vector<bool>{true, true, false, false, true, false};
    step(rows_of(world.rank(), 0), [&](at::Tensor const& x) { return model.forward(x, used).square().mean(); });
    for (auto const& layer : model.all) has[rank].push_back(layer->weight.grad().defined());
    first[rank] = copies_of(model.parameters());
    for (std::size_t const frozen : {1u, 4u}) model.all[frozen]->weight.requires_grad_(false);
    step(rows_of(world.rank(), 1), [&](at::Tensor const& x) { return plain_loss(model, x); });
    CHECK(at::equal(model.all[1]->weight, first[rank][2]));
    CHECK(at::equal(model.all[4]->weight, first[rank][8]));
    for (std::size_t const frozen : {1u, 4u}) model.all[frozen]->weight.requires_grad_(true);
    step(rows_of(world.rank(), 2), [&](at::Tensor const& x) { return plain_loss(model, x); });
    CHECK(!at::equal(model.all[1]->weight, first[rank][2]));
    last[rank] = copies_of(model.parameters());
  });
  CHECK(same_bits(last[0], last[1]));
  CHECK(has[0] == std::vector<bool>{true, true, true, false, true, false});
  CHECK(has[1] == has[0]);
}

TEST_CASE("a rank whose first layers are unused has sent all of its gradients, and its update is applied") {
  at::set_num_threads(1);
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    tower model;
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    keel::step<plain> step{model, optimizer, world};
    at::Tensor const unused = model.all[0]->weight.clone(), used = model.all[5]->weight.clone();
    step(rows_of(world.rank(), 0), [&](at::Tensor const& x) { return model.forward(x, {false, true, true, true, true, true}).square().mean(); });
    CHECK(at::equal(model.all[0]->weight, unused));
    CHECK_FALSE(at::equal(model.all[5]->weight, used));
  });
}

TEST_CASE("gradients that the program exchanges, sets aside or clears between its own backward passes are summed as one rank has them") {
  at::set_num_threads(1);
  auto const run_backward = [](tower& model) { model.forward(at::ones({1, width})).mean().backward(); };
  std::vector<std::function<void(tower&)>> const changes{
      [](tower& model) { model.all[0]->bias.mutable_grad() = model.all[5]->bias.grad().detach(); },
      [](tower& model) { model.all[5]->bias.mutable_grad() = model.all[0]->bias.grad().detach(); },
      [](tower& model) { std::swap(model.all[0]->weight.mutable_grad(), model.all[5]->weight.mutable_grad()); },
      [](tower& model) { std::swap(model.all[2]->bias.mutable_grad(), model.all[3]->bias.mutable_grad()); },
      [](tower& model) { model.all[4]->weight.mutable_grad() = model.all[4]->weight.grad().t(); },
      [&](tower& model) {
        keel::detail::saved_gradients const aside(model.parameters());
        run_backward(model);
      },
      [&](tower& model) {
        for (at::Tensor const& one : model.parameters()) one.mutable_grad() = at::Tensor();
        run_backward(model);
      },
      [&](tower& model) {
        for (at::Tensor const& one : model.parameters()) one.mutable_grad().zero_();
        run_backward(model);
      }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    auto const train = [&]<class Recipe>(int ranks) {
      std::vector<at::Tensor> found;
      keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
        tower model;
        torch::optim::SGD optimizer(model.parameters(), 0.1);
        keel::step<Recipe> step{model, optimizer, world};
        for (int update = 0; update < 4; ++update) {
          auto window = step.open();
          // The same rows on all ranks: the mean of their gradients is that of one.
          at::Tensor const loss = plain_loss(model, rows_of(0, update));
          loss.backward();
          changes[i](model);
          window.close(loss);
        }
        if (world.rank() == 0) found = copies_of(model.parameters());
      });
      return found;
    };
    CHECK(same_bits(train.operator()<plain>(2), train.operator()<plain>(1)));
    CHECK(same_bits(train.operator()<in_shares>(2), train.operator()<plain>(1)));
    CHECK(same_bits(train.operator()<accumulating>(2), train.operator()<accumulating>(1)));
  }
}

TEST_CASE("a parameter that is frozen in an open update is updated by the gradient that it has, as on one rank") {
  at::set_num_threads(1);
  auto const train = [](int ranks) {
    std::vector<at::Tensor> found;
    keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
      tower model;
      torch::optim::SGD optimizer(model.parameters(), 0.1);
      keel::step<accumulating> step{model, optimizer, world};
      auto const loss_of = [&](at::Tensor const& x) { return plain_loss(model, x); };
      for (int i = 0; i < 8; ++i) {
        // Frozen within the second and third update, and between the two behind them.
        model.all[3]->weight.requires_grad_(i != 3 && i != 5 && i != 6);
        step(rows_of(0, i), loss_of);
      }
      if (world.rank() == 0) found = copies_of(model.parameters());
    });
    return found;
  };
  CHECK(same_bits(train(2), train(1)));
}

TEST_CASE("a backward pass that a hook runs within that of the loss, and whose gradients it sets aside, is not summed") {
  at::set_num_threads(1);
  auto const train = [](int ranks, bool has_probe, int layer) {
    std::vector<at::Tensor> found;
    keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
      tower model;
      torch::optim::SGD optimizer(model.parameters(), 0.1);
      keel::step<plain> step{model, optimizer, world};
      for (int i = 0; i < 3; ++i) {
        step(rows_of(0, i), [&](at::Tensor const& x) {
          at::Tensor y = x;
          for (int at = 0; at < layers; ++at) {
            y = at::relu(model.all[static_cast<std::size_t>(at)]->forward(y)) + y;
            if (!has_probe || at != layer) continue;
            y.register_hook([&](at::Tensor const&) {
              keel::detail::saved_gradients const aside(model.parameters());
              at::AutoGradMode const records(true);
              model.forward(at::ones({1, width})).mean().backward();
            });
          }
          return y.square().mean();
        });
      }
      if (world.rank() == 0) found = copies_of(model.parameters());
    });
    return found;
  };
  for (int const layer : {0, 3, layers - 1}) CHECK(same_bits(train(2, true, layer), train(1, false, layer)));
}

TEST_CASE("a gradient from before its sum began that a hook sets again ends the update on all ranks by name") {
  at::set_num_threads(1);
  std::vector<std::string> messages(2);
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    tower model;
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    keel::step<accumulating> step{model, optimizer, world};
    at::Tensor kept;
    auto const loss_of = [&](at::Tensor const& x) {
      at::Tensor const y = model.all[0]->forward(x);
      y.register_hook([&](at::Tensor const&) {
        at::Tensor& gradient = model.all[5]->weight.mutable_grad();
        if (world.rank() == 1 && kept.defined()) gradient = kept;
        kept = gradient;
      });
      return model.forward(y, {false, true, true, true, true, true}).square().mean();
    };
    auto const rank = static_cast<std::size_t>(world.rank());
    step(rows_of(world.rank(), 0), loss_of);
    messages[rank] = words_of([&] { step(rows_of(world.rank(), 1), loss_of); });
  });
  for (std::string const& one : messages) {
    INFO(one);
    CHECK(one.find("layer5.weight got back a gradient") != std::string::npos);
  }
}

TEST_CASE("if one rank agrees only after its pass, because of a hook, sums follow the pass on all ranks from the next update on") {
  at::set_num_threads(1);
  std::vector<std::vector<at::Tensor>> with_hook(2), without(2);
  std::vector<std::int64_t> sums_in_pass;
  for (bool const has_hook : {false, true}) {
    keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
      tower model;
      torch::optim::SGD optimizer(model.parameters(), 0.1);
      keel::trainer<plain> run{model, optimizer, world, quiet()};
      if (has_hook && world.rank() == 0) run.on([](keel::event::micro_batch_end const&) {});
      std::int64_t before = 0;
      std::vector<at::Tensor> batches;
      for (int i = 0; i < 3; ++i) batches.push_back(rows_of(world.rank(), i));
      run.fit(batches, [&](at::Tensor const& x) {
        before = world.collectives();
        at::Tensor const y = model.all[0]->forward(x);
        y.register_hook([&](at::Tensor const&) {
          if (has_hook && world.rank() == 1) sums_in_pass.push_back(world.collectives() - before - 1);
        });
        return model.forward(y, {false, true, true, true, true, true}).square().mean();
      });
      (has_hook ? with_hook : without)[static_cast<std::size_t>(world.rank())] = copies_of(model.parameters());
    });
  }
  CHECK(same_bits(with_hook[0], without[0]));
  CHECK(same_bits(with_hook[1], without[1]));
  REQUIRE(sums_in_pass.size() == 3);
  CHECK(sums_in_pass[1] == 0);
  CHECK(sums_in_pass[2] == 0);
}

TEST_CASE("ranks that freeze different parameters are told apart by name before anything is added up") {
  at::set_num_threads(1);
  auto const words = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
    tower model;
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    keel::step<plain> step{model, optimizer, world};
    // As many of them, and the same sum of their numbers.
    for (std::size_t const frozen : world.rank() == 0 ? std::vector<std::size_t>{0, 3} : std::vector<std::size_t>{1, 2})
      model.all[frozen]->weight.requires_grad_(false);
    step(rows_of(world.rank(), 0), [&](at::Tensor const& x) { return plain_loss(model, x); });
  });
  for (std::string const& one : words) CHECK(one.find("[E26] rank 1 and rank 0 do not train the same parameters") == 0);
}

TEST_CASE("gradients that the program keeps stay as they were, and zero_grad takes those of the sums") {
  at::set_num_threads(1);
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    tower model;
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    keel::step<plain> step{model, optimizer, world};
    auto const one = [&](int update) { step(rows_of(world.rank(), update), [&](at::Tensor const& x) { return plain_loss(model, x); }); };
    one(0);
    at::Tensor const kept = model.all[3]->weight.grad(), values = kept.clone();
    one(1);
    CHECK(at::equal(kept, values));
    CHECK(!at::equal(kept, model.all[3]->weight.grad()));
    optimizer.zero_grad();
    one(2);
    // As LibTorch 1.13 does, which keeps the tensors.
    for (at::Tensor const& parameter : model.parameters()) parameter.mutable_grad().detach_().zero_();
    one(3);
    CHECK(model.all[3]->weight.grad().defined());
  });
}

TEST_CASE("two steps over one model, and backward passes beside a step, disturb no sum") {
  at::set_num_threads(1);
  std::vector<std::vector<at::Tensor>> found(2);
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    tower model;
    torch::optim::SGD slow(model.parameters(), 0.01), fast(model.parameters(), 0.1);
    keel::step<plain> of_slow{model, slow, world}, of_fast{model, fast, world};
    for (int update = 0; update < 3; ++update) {
      auto const loss_of = [&](at::Tensor const& x) { return plain_loss(model, x); };
      of_slow(rows_of(world.rank(), update), loss_of);
      torch::autograd::grad({plain_loss(model, rows_of(9, update))}, {model.all[4]->weight});
      of_fast(rows_of(world.rank(), update), loss_of);
    }
    {
      keel::step<plain> third{model, slow, world};
      third(rows_of(world.rank(), 7), [&](at::Tensor const& x) { return plain_loss(model, x); });
    }
    of_fast(rows_of(world.rank(), 8), [&](at::Tensor const& x) { return plain_loss(model, x); });
    found[static_cast<std::size_t>(world.rank())] = copies_of(model.parameters());
  });
  CHECK(same_bits(found[0], found[1]));
}
