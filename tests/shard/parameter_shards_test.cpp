// shard::zero<3>: a unit's parameters are whole while it computes, forward and backward, and only shards otherwise; what it computes has the
// bits of the whole model, and a parameter that is read elsewhere is an error with its name.
#include <ATen/Parallel.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <keel/collective/in_process.hpp>
#include <keel/memory/budget.hpp>
#include <keel/recompute/unit.hpp>
#include <keel/shard/parameter_shards.hpp>

#include "../support.hpp"

using namespace keel_test;

namespace {

using keel::detail::parameter_shards;
using keel::detail::unit_parameters;

struct block : torch::nn::Module {
  torch::nn::Linear wide{nullptr}, back{nullptr};
  torch::nn::Dropout dropout{nullptr};
  at::Tensor tied;  ///< a parameter of another block, too
  bool draws;
  block(std::int64_t width, bool drops, at::Tensor const& other) : tied(other), draws(drops) {
    wide = register_module("wide", torch::nn::Linear(width, 3 * width + 5));
    back = register_module("back", torch::nn::Linear(3 * width + 5, width));
    dropout = register_module("dropout", torch::nn::Dropout(0.3));
    if (other.defined()) register_parameter("tied", other);
  }
  at::Tensor forward(at::Tensor const& x) {
    at::Tensor y = back(at::gelu(wide(x)));
    if (draws) y = dropout(y);
    return tied.defined() ? x + y * tied.tanh() : x + y;
  }
};
using block_pointer = std::shared_ptr<block>;

struct network : torch::nn::Module {
  std::vector<block_pointer> blocks;
  torch::nn::Linear head{nullptr};
  explicit network(bool drops = false, bool is_tied = false, std::int64_t width = 24) {
    at::manual_seed(7);
    at::Tensor const shared = is_tied ? torch::ones({width}).set_requires_grad(true) : at::Tensor();
    for (int i = 0; i < 3; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<block>(width, drops, i == 1 ? at::Tensor() : shared)));
    head = register_module("head", torch::nn::Linear(width, 2));
  }
  at::Tensor forward(at::Tensor x, bool nests = false) {
    for (auto const& one : blocks) {
      x = nests ? keel::unit([one](at::Tensor const& y) { return keel::unit(one, y) * 0.5; }, x) : keel::unit(one, x);
    }
    return head(x);
  }
};

struct single_thread {
  int const before = at::get_num_threads();
  single_thread() { at::set_num_threads(1); }
  ~single_thread() { at::set_num_threads(before); }
};

keel::parameter_list listed(torch::nn::Module const& model) {
  keel::parameter_list all;
  for (auto const& item : model.named_parameters()) {
    all.names.push_back(item.key());
    all.tensors.push_back(item.value());
  }
  return all;
}

struct setup {
  keel::recompute_kind kind = keel::recompute_kind::none;
  bool drops = false, is_tied = false, nests = false;
};

/// Gradients and outputs of three passes.
std::vector<at::Tensor> passes(network& model, setup const& how, std::shared_ptr<parameter_shards> const& shards) {
  std::vector<at::Tensor> found;
  at::manual_seed(3);
  for (int i = 0; i < 3; ++i) {
    at::Tensor const x = (at::arange(5 * 24).view({5, 24}) * 0.01 * (i + 1)).sin().requires_grad_(how.kind == keel::recompute_kind::reentrant);
    at::Tensor loss;
    {
      keel::unit_scope const scope(how.kind);
      loss = model.forward(x, how.nests).square().mean();
    }
    if (shards) {
      for (auto const& one : model.blocks) CHECK(unit_parameters::is_freed(one->wide->weight));
      CHECK_FALSE(unit_parameters::is_freed(model.head->weight));
    }
    loss.backward();
    if (shards) {
      shards->end_backward();
      for (auto const& one : model.blocks) CHECK(unit_parameters::is_freed(one->back->bias));
    }
    found.push_back(loss.detach());
  }
  for (at::Tensor const& one : model.parameters()) found.push_back(one.grad().clone());
  at::NoGradGuard const no_grad;
  found.push_back(model.forward(at::ones({2, 24})));
  return found;
}

void compare(setup const& how) {
  network plain(how.drops, how.is_tied);
  auto const expected = passes(plain, how, nullptr);
  for (int const ranks : {1, 2, 3, 4}) {
    std::vector<std::vector<at::Tensor>> all(static_cast<std::size_t>(ranks));
    std::vector<std::vector<at::Tensor>> gathered(static_cast<std::size_t>(ranks));
    keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
      network model(how.drops, how.is_tied);
      auto const trained = listed(model);
      auto const shards = parameter_shards::make(world, model, trained);
      all[static_cast<std::size_t>(world.rank())] = passes(model, how, shards);
      shards->gather_all();
      gathered[static_cast<std::size_t>(world.rank())] = copies_of(model.parameters());
      shards->drop_all();
      CHECK(shards->names_outside_units() == std::vector<std::string>{"head.weight", "head.bias"});
      std::int64_t own = 0, whole = 0;
      for (auto const& one : model.blocks) {
        for (at::Tensor const& parameter : one->parameters()) {
          own += shards->shard_of(parameter).numel();
          whole += parameter.numel();
          CHECK(parameter.storage().nbytes() == 0);
        }
      }
      CHECK(static_cast<double>(own) <= static_cast<double>(whole) / ranks + 64.0 * 20);
    });
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      INFO(rank << " of " << ranks);
      CHECK(same_bits(all[rank], expected));
      CHECK(same_bits(gathered[rank], copies_of(plain.parameters())));
    }
  }
}

std::string message_of(std::function<void()> const& run) {
  try {
    run();
  } catch (keel::error const& thrown) {
    return thrown.what();
  }
  return "";
}
bool has(std::string const& words, std::string const& part) {
  UNSCOPED_INFO(words);
  return words.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("units compute with shards what they compute with whole parameters, bit for bit, however they are recomputed") {
  single_thread const threads;
  for (auto const kind : {keel::recompute_kind::none, keel::recompute_kind::reentrant, keel::recompute_kind::non_reentrant}) {
    INFO(static_cast<int>(kind));
    compare({.kind = kind});
    compare({.kind = kind, .drops = true, .is_tied = true});
    compare({.kind = kind, .drops = true, .nests = true});
  }
}

TEST_CASE("a parameter that is read outside of its unit is an error that names it and the unit, whatever reads it") {
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    network model;
    auto const trained = listed(model);
    auto const shards = parameter_shards::make(world, model, trained);
    model.forward(at::ones({2, 24}));
    at::Tensor const weight = model.blocks[1]->wide->weight;
    for (auto const& read : std::vector<std::function<void()>>{
             [&] { weight.sum(); }, [&] { weight.detach(); }, [&] { static_cast<void>(weight.clone()); }, [&] { weight.mul_(2); },
             [&] { at::cat({at::ones({2, 24}), weight}); }, [&] { model.blocks[1]->forward(at::ones({2, 24})); },
             [&] { model.blocks[1]->to(at::kDouble); }, [&] { static_cast<void>(weight.item()); }, [&] { weight.t(); },
             [&] { at::NoGradGuard const no_grad; weight.copy_(at::ones_like(model.head->weight)); },
             [&] { at::_foreach_norm({weight, weight}); }}) {
      std::string const message = message_of([&] {
        try {
          read();
        } catch (c10::Error const& thrown) {
          FAIL(thrown.what());
        }
      });
      CHECK(has(message, "[E12]"));
      CHECK(has(message, "block1.wide"));
      CHECK(has(message, "the unit block1"));
    }
    CHECK(weight.sizes() == at::IntArrayRef{77, 24});
    CHECK(weight.requires_grad());
    CHECK_FALSE(weight.grad().defined());
  });
}

TEST_CASE("a second output, a graph that is kept, and a unit called twice find their parameters") {
  single_thread const threads;
  auto const run = [](network& model, parameter_shards* shards) {
    std::vector<at::Tensor> aside;
    at::Tensor x = at::ones({3, 24});
    for (int i = 0; i < 2; ++i) {
      for (auto const& one : model.blocks) {
        x = keel::unit(one, [&, one](at::Tensor const& y) {
          aside.push_back(one->wide->weight.t().matmul(one->wide->weight).square().mean());
          return one->forward(y);
        }, x);
      }
    }
    at::Tensor loss = model.head(x).square().mean();
    for (at::Tensor const& one : aside) loss = loss + one;
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    if (shards != nullptr) shards->end_backward();
    // Only the second outputs.
    aside.clear();
    for (auto const& one : model.blocks)
      keel::unit(one, [&, one](at::Tensor const& y) {
        aside.push_back(one->wide->weight.t().matmul(one->wide->weight).square().mean());
        return y * 1.0;
      }, x.detach());
    at::Tensor sum = aside[0] + aside[1] + aside[2];
    sum.backward();
    if (shards != nullptr) shards->end_backward();
    std::vector<at::Tensor> found;
    for (at::Tensor const& one : model.parameters()) found.push_back(one.grad().defined() ? one.grad().clone() : at::Tensor());
    return found;
  };
  network plain;
  auto const expected = run(plain, nullptr);
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    network model;
    auto const trained = listed(model);
    auto const shards = parameter_shards::make(world, model, trained);
    CHECK(same_bits(run(model, shards.get()), expected));
  });
}

TEST_CASE("an in-place change of a saved tensor is an error under shards, as autograd makes it") {
  keel::run_in_process(1, [&](keel::world_of_ranks const& world) {
    network model;
    auto const trained = listed(model);
    auto const shards = parameter_shards::make(world, model, trained);
    at::Tensor inner;
    auto const loss = keel::unit(model.blocks[0], [&](at::Tensor const& x) {
      inner = model.blocks[0]->wide(x).exp();
      return inner * 1.0;
    }, at::ones({2, 24})).sum();
    { at::NoGradGuard const no_grad; inner.zero_(); }
    CHECK(has(message_of([&] { loss.backward(); }), "[E16]"));
    shards->end_backward();
  });
}

TEST_CASE("an exception of a unit, and memory that runs out in a gather, leave the parameters as they were") {
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    network model;
    auto const before = copies_of(model.parameters());
    auto const trained = listed(model);
    bool throws = false;
    auto const shards = parameter_shards::make(world, model, trained, [&](parameter_shards::pass, double, std::string const& name) {
      if (throws && name == "block1") throw std::runtime_error("meeting");
    });
    model.forward(at::ones({2, 24}));
    throws = true;
    CHECK_THROWS_AS(model.forward(at::ones({2, 24})), std::runtime_error);
    throws = false;
    CHECK_THROWS_AS(keel::unit(model.blocks[0], [](at::Tensor const&) -> at::Tensor { throw std::logic_error("of the model"); }, at::ones({2, 24})),
                    std::logic_error);
    for (auto const& one : model.blocks) CHECK(unit_parameters::is_freed(one->wide->weight));
    shards->gather_all();
    CHECK(same_bits(copies_of(model.parameters()), before));
    shards->drop_all();
  });
}

TEST_CASE("what is written while all parameters are gathered is in the shards") {
  keel::run_in_process(3, [&](keel::world_of_ranks const& world) {
    network model;
    auto const trained = listed(model);
    auto const shards = parameter_shards::make(world, model, trained);
    model.forward(at::ones({2, 24}));
    shards->gather_all();
    {
      at::NoGradGuard const no_grad;
      for (at::Tensor const& one : model.parameters()) one.mul_(3.0);
    }
    auto const written = copies_of(model.parameters());
    shards->drop_all();
    CHECK(unit_parameters::is_freed(model.blocks[0]->wide->weight));
    shards->gather_all();
    CHECK(same_bits(copies_of(model.parameters()), written));
    shards->drop_all();
    // Results of an operation that it saves itself keep nothing alive.
    std::weak_ptr<parameter_shards> const alive = shards;
    model.forward(at::ones({2, 24})).tanh().sum().backward();
    keel::unit(model.blocks[0], [](at::Tensor const& x) { return x.exp().tanh().sigmoid(); }, at::ones({2, 24}).requires_grad_()).sum().backward();
    shards->end_backward();
    CHECK(alive.use_count() == 1);
    // A second step with the same model.
    CHECK(has(message_of([&] { parameter_shards::make(world, model, trained); }), "[E11]"));
  });
}
