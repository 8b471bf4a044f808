// shard::zero<3>: what is trained is what replicas train, at any number of ranks, however units are recomputed; and a rank that fails, has no
// gradient, or ends its data in the middle of a pass ends, completes or skips the update of all.
#include <ATen/Parallel.h>
#include <torch/nn/modules/dropout.h>
#include <torch/optim/adamw.h>

#include <atomic>
#include <cmath>
#include <map>

#include <keel/collective/collectives.hpp>
#include <keel/collective/in_process.hpp>
#include <keel/memory/budget.hpp>
#include <keel/recompute/unit.hpp>
#include <keel/recompute/unit_parameters.hpp>

#include "../collective/rank_error_messages.hpp"
#include "../support.hpp"
#include "zero3_network.hpp"

using namespace keel_test;
using namespace keel_test::zero3;
using namespace keel::literals;

namespace {

struct ended {
  std::vector<at::Tensor> parameters;
  std::vector<double> norms, losses;
  std::int64_t updates = 0, skipped = 0;
  double evaluated = 0.0;
};

struct training {
  at::ScalarType dtype = at::kFloat;
  double drops = 0.0;
  bool stock = false;    ///< LibTorch's AdamW
  bool freezes = false;  ///< a unit, and a part of another
  bool groups = false;   ///< two parameter groups
  std::int64_t micro_batches = 12;
  std::int64_t bad = -1;    ///< the micro-batch that is NaN on rank 0
  std::int64_t empty = -1;  ///< the micro-batch that has no weight on the last rank
  /// Units of micro-batches, those of all ranks.
  std::map<std::int64_t, std::vector<std::size_t>> paths = {};
};

template <class Recipe>
std::vector<ended> train(int ranks, training const& how) {
  std::vector<ended> all(static_cast<std::size_t>(ranks));
  keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
    network model(how.drops, how.dtype, how.freezes);
    auto const trained = model.trained();
    std::vector<torch::optim::OptimizerParamGroup> groups;
    if (how.groups) {
      auto const middle = trained.begin() + 5;
      groups.emplace_back(std::vector<at::Tensor>(trained.begin(), middle), std::make_unique<torch::optim::AdamWOptions>(0.01));
      groups.emplace_back(std::vector<at::Tensor>(middle, trained.end()), std::make_unique<torch::optim::AdamWOptions>(0.003));
    } else {
      groups.emplace_back(trained);
    }
    keel::adamw of_keel(groups, torch::optim::AdamWOptions(0.01));
    torch::optim::AdamW of_torch(trained, torch::optim::AdamWOptions(0.01));
    ended& found = all[static_cast<std::size_t>(world.rank())];
    auto const run = [&](auto& optimizer) {
      keel::step<Recipe> step{model, optimizer, world};
      at::manual_seed(10 + world.rank());
      for (std::int64_t i = 0; i < how.micro_batches; ++i) {
        at::Tensor rows = rows_of(i, world.rank(), how.dtype);
        if (i == how.bad && world.rank() == 0) rows = rows * NAN;
        auto const other = how.paths.find(i);
        auto const path = other == how.paths.end() ? std::vector<std::size_t>{0, 1, 2} : other->second;
        bool const is_empty = i == how.empty && world.rank() == world.size() - 1;
        auto const outcome = step([&] { return keel::weighted_loss{model.loss(rows, path), is_empty ? 0.0 : static_cast<double>(rows.size(0))}; });
        if (auto const* const updated = outcome.updated()) {
          found.norms.push_back(updated->gradient_norm);
          found.losses.push_back(updated->loss);
        }
      }
      found.updates = step.updates();
      found.skipped = step.skipped();
      {
        at::NoGradGuard const no_grad;
        model.eval();
        found.evaluated = model.loss(rows_of(3, 0, how.dtype)).template item<double>();
      }
      bool const is_cut = step.configured.shard.stage == 3 && world.size() > 1;
      for (auto const& one : model.layers) CHECK(keel::detail::unit_parameters::is_freed(one->wide->weight) == is_cut);
      CHECK_FALSE(keel::detail::unit_parameters::is_freed(model.first->weight));
      auto const everything = step.gather_parameters();
      found.parameters = copies_of(model.parameters());
    };
    how.stock ? run(of_torch) : run(of_keel);
  });
  return all;
}

template <class Recipe, class Other>
void have_same_bits(training const& how, std::vector<int> const& worlds = {1, 2, 3, 4}) {
  for (int const ranks : worlds) {
    INFO(ranks);
    auto const expected = train<Recipe>(ranks, how), all = train<Other>(ranks, how);
    for (auto const& one : all) {
      CHECK(same_bits(one.parameters, expected.front().parameters));
      CHECK(one.updates == expected.front().updates);
      CHECK(one.skipped == expected.front().skipped);
      CHECK(one.evaluated == expected.front().evaluated);
      CHECK(one.losses == expected.front().losses);
    }
  }
}

bool has(std::string const& words, std::string const& part) {
  UNSCOPED_INFO(words);
  return words.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("parameters in shards train the bits of replicas, at any number of ranks, dtype and optimizer") {
  single_thread const threads;
  have_same_bits<whole<skips>, cut<skips>>({});
  have_same_bits<whole<skips>, cut<skips>>({.dtype = at::kBFloat16});
  have_same_bits<whole<skips>, cut<skips>>({.dtype = at::kDouble, .stock = true});
  have_same_bits<whole<skips>, cut<skips>>({.drops = 0.2, .groups = true});
  have_same_bits<whole<skips>, cut<skips>>({.drops = 0.2, .freezes = true});
}

TEST_CASE("with clipping and accumulation they train the bits of gradients in shards") {
  single_thread const threads;
  have_same_bits<cut2<skips, clips>, cut<skips, clips>>({.drops = 0.2});
  have_same_bits<cut2<skips, clips, keel::accumulate<3>>, cut<skips, clips, keel::accumulate<3>>>({.drops = 0.2});
  have_same_bits<cut2<skips, keel::accumulate<2>, keel::precision::bf16>, cut<skips, keel::accumulate<2>, keel::precision::bf16>>({});
}

TEST_CASE("units that are recomputed gather inside the recomputation") {
  single_thread const threads;
  using again = keel::recompute::reentrant;
  have_same_bits<whole<skips, again>, cut<skips, again>>({.drops = 0.3});
  have_same_bits<cut2<skips, again, clips, keel::accumulate<2>>, cut<skips, again, clips, keel::accumulate<2>>>({.drops = 0.3});
}

TEST_CASE("a micro-batch that is not finite on one rank, or has no weight on one, is skipped or summed as under replicas") {
  single_thread const threads;
  have_same_bits<whole<skips>, cut<skips>>({.bad = 2}, {2, 3});
  have_same_bits<whole<skips>, cut<skips>>({.bad = 5});
  have_same_bits<cut2<skips, keel::accumulate<3>>, cut<skips, keel::accumulate<3>>>({.drops = 0.2, .bad = 4});
  have_same_bits<cut2<skips, keel::accumulate<3>>, cut<skips, keel::accumulate<3>>>({.drops = 0.2, .bad = 8}, {2, 3});
  have_same_bits<whole<skips>, cut<skips>>({.empty = 5});
  have_same_bits<whole<skips>, cut<skips>>({.empty = 0});
  have_same_bits<cut2<skips, keel::accumulate<3>, clips>, cut<skips, keel::accumulate<3>, clips>>({.drops = 0.2, .empty = 4});
}

TEST_CASE("an exception of one rank in any unit, forward or backward, is the end of all in the same update") {
  single_thread const threads;
  for (int const ranks : {2, 3}) {
    for (std::int64_t const update : {0, 2, 5}) {
      // Number 3 is the loss, after all units.
      for (int const unit : {0, 1, 2, 3}) {
        for (bool const backward : {false, true}) {
          for (bool const is_memory : {false, true}) {
            INFO(ranks << " ranks, update " << update << ", unit " << unit << (backward ? " backward" : " forward"));
            std::vector<std::int64_t> updates(static_cast<std::size_t>(ranks), -1);
            auto const words = rank_error_messages(ranks, [&](keel::world_of_ranks const& world) {
              network model(0.0, at::kFloat, false, update == 2 ? 160 : 20);
              keel::adamw optimizer(model.parameters(), 0.01);
              keel::step<cut<skips>> step{model, optimizer, world};
              auto const fail = [&] {
                if (is_memory) throw std::bad_alloc();
                throw std::runtime_error("of the model");
              };
              for (std::int64_t i = 0; i < 7; ++i) {
                bool const here = i == update && world.rank() == world.size() - 1;
                at::Tensor const rows = rows_of(i, world.rank());
                step([&] {
                  at::Tensor y = model.first(rows);
                  for (int k = 0; k < 3; ++k) {
                    auto const& one = model.layers[static_cast<std::size_t>(k)];
                    y = keel::unit(one, [&, one, k](at::Tensor const& x) {
                      if (here && k == unit && !backward) fail();
                      at::Tensor z = one->forward(x);
                      if (here && k == unit && backward) z.register_hook([&](at::Tensor const&) { fail(); });
                      return z * 1.0;
                    }, y);
                  }
                  y = model.last(y);
                  if (here && unit == 3 && !backward) fail();
                  if (here && unit == 3) y.register_hook([&](at::Tensor const&) { fail(); });
                  return y.square().mean();
                });
                updates[static_cast<std::size_t>(world.rank())] = step.updates();
              }
            });
            for (std::string const& one : words) CHECK(has(one, is_memory ? "memory" : "of the model"));
            for (std::int64_t const one : updates) CHECK(one == (update == 0 ? -1 : update));
          }
        }
      }
    }
  }
}

namespace {

template <class... Policies>
struct climbing : cut<keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>, Policies...> {};

}  // namespace

TEST_CASE("memory that runs out on one rank in any unit is the same rung of all, and ends with the same parameters") {
  single_thread const threads;
  for (int const unit : {0, 1, 2, 3}) {
    for (bool const backward : {false, true}) {
      for (std::int64_t const index : {-2, 0, 1, 5}) {
        if (index == 1 && unit == 3) continue;
        INFO("unit " << unit << (backward ? " backward" : " forward") << ", micro-batch " << index);
        std::vector<std::vector<at::Tensor>> parameters(3);
        std::vector<std::int64_t> pieces(3);
        auto const words = rank_error_messages(3, [&](keel::world_of_ranks const& world) {
          auto const rank = static_cast<std::size_t>(world.rank());
          network model(0.0, at::kFloat, false, 100);
          keel::adamw optimizer(model.parameters(), 0.01);
          keel::step<climbing<keel::accumulate<2>>> step{model, optimizer, world};
          for (std::int64_t i = 0; i < 10; ++i) {
            at::Tensor const batch = (at::arange(4 * 7).view({4, 7}) * 0.1 + static_cast<double>(i + world.rank())).sin();
            step(batch, [&, i](at::Tensor const& rows) {
              bool const here = i == 2 + index && world.rank() == 1 && rows.size(0) == 4;
              at::Tensor y = model.first(rows);
              for (int k = 0; k < 3; ++k) {
                auto const& one = model.layers[static_cast<std::size_t>(k)];
                y = keel::unit(one, [&, one, k, here](at::Tensor const& x) {
                  if (here && k == unit && !backward) throw std::bad_alloc();
                  at::Tensor z = one->forward(x);
                  if (here && k == unit && backward) z.register_hook([](at::Tensor const&) { throw std::bad_alloc(); });
                  return z * 1.0;
                }, y);
              }
              y = model.last(y);
              if (here && unit == 3 && !backward) throw std::bad_alloc();
              if (here && unit == 3) y.register_hook([](at::Tensor const&) { throw std::bad_alloc(); });
              return y.square().mean();
            });
          }
          pieces[rank] = step.pieces();
          auto const everything = step.gather_parameters();
          parameters[rank] = copies_of(model.parameters());
        });
        CHECK(words == std::vector<std::string>(3));
        for (std::size_t rank = 0; rank < 3; ++rank) {
          CHECK(pieces[rank] == 2);
          CHECK(same_bits(parameters[rank], parameters[0]));
        }
      }
    }
  }
}

TEST_CASE("units that change between updates, on all ranks, train the bits of replicas") {
  single_thread const threads;
  // After four updates the units of the next one are expected, in vain.
  for (auto const& path : std::vector<std::vector<std::size_t>>{{0, 2}, {2, 1, 0}, {0, 1}, {0, 1, 2, 0}, {0, 0, 1, 2}}) {
    training how{.drops = 0.2, .micro_batches = 14, .paths = {{5, path}, {10, path}, {11, path}, {12, path}, {13, path}}};
    have_same_bits<whole<skips>, cut<skips>>(how, {2, 3});
    have_same_bits<cut2<skips, keel::recompute::reentrant, keel::accumulate<2>>,
                   cut<skips, keel::recompute::reentrant, keel::accumulate<2>>>(how, {2});
  }
}

TEST_CASE("ranks that call different units get an error that names both, also where those of the last updates are expected") {
  single_thread const threads;
  struct different {
    std::int64_t update;
    std::vector<std::size_t> of_first, of_second;
    std::string one, other;
  };
  for (auto const& [update, of_first, of_second, one, other] : std::vector<different>{
           {2, {0, 1, 0}, {0, 1, 1}, "layer0", "layer1"},
           {6, {0, 1, 0}, {0, 1, 1}, "layer0", "layer1"},
           {6, {0, 1}, {0, 0}, "the unit layer0", "its backward pass"},
           {6, {0, 1}, {1, 1}, "layer1", "layer0"},
           {6, {1, 0}, {0, 0}, "layer1", "layer0"},
           {6, {0, 1}, {2, 1}, "layer2", "layer0"},
       }) {
    INFO("update " << update << ", " << one << ", " << other);
    auto const messages = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
      network model(0.0);
      keel::adamw optimizer(model.parameters(), 0.01);
      keel::step<cut<skips>> step{model, optimizer, world};
      for (std::int64_t i = 0; i < 8; ++i) {
        std::vector<std::size_t> path{0, 1};
        if (i == update) path = world.rank() == 0 ? of_first : of_second;
        step([&] { return model.loss(rows_of(i, world.rank()), path); });
      }
    });
    for (std::string const& message : messages) {
      CHECK(has(message, "[E26]"));
      CHECK(has(message, one));
      CHECK(has(message, other));
    }
  }
}

TEST_CASE("a loss without one of its terms, on one rank or on all, trains the bits of replicas where that term is expected") {
  single_thread const threads;
  struct variant {
    std::int64_t width = 160;  ///< the head is a bucket of its own, which begins before the backward pass has reached a unit; 20: it does not
    bool changes_units = false, reads_whole = false;
    bool is_uneven = false;          ///< rank 0 has a term that no other rank has
    bool leaves_out_side = false;    ///< a layer that no unit has, in a bucket with parameters of a unit; otherwise a unit
    std::vector<std::int64_t> left_out = {6, 8};  ///< micro-batches of the last rank; of all it is the one between them
  };
  struct network_of_terms : torch::nn::Module {
    torch::nn::Linear front{nullptr}, side{nullptr}, of_first{nullptr}, head{nullptr};
    std::vector<std::shared_ptr<layer>> layers;
    explicit network_of_terms(variant const& how) {
      at::manual_seed(9);
      front = register_module("front", torch::nn::Linear(7, how.width));
      for (int i = 0; i < 3; ++i) {
        layers.push_back(register_module("layer" + std::to_string(i), std::make_shared<layer>(how.width, 0.0)));
        if (i == 0) side = register_module("side", torch::nn::Linear(7, 1));
      }
      if (how.is_uneven) of_first = register_module("of_first", torch::nn::Linear(7, 1));
      head = register_module("head", torch::nn::Linear(how.width, how.width == 160 ? 500 : 3));
    }
  };
  auto const run = [](auto recipe, int ranks, variant const& how) {
    std::vector<at::Tensor> found;
    keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
      network_of_terms model(how);
      keel::adamw optimizer(model.parameters(), 0.01);
      keel::step<decltype(recipe)> step{model, optimizer, world};
      for (std::int64_t i = 0; i < 12; ++i) {
        step([&] {
          at::Tensor const x = rows_of(i, world.rank()).slice(0, 0, 1);
          if (how.reads_whole) {
            at::NoGradGuard const no_grad;
            auto const everything = step.gather_parameters();
            for (at::Tensor const& one : model.parameters()) one.clamp_(-0.04, 0.04);
          }
          at::Tensor y = model.front(x).tanh();
          for (std::size_t const k : how.changes_units && i >= 6 ? std::vector<std::size_t>{0, 2} : std::vector<std::size_t>{0, 1, 2})
            y = keel::unit(model.layers[k], y);
          at::Tensor loss = model.head(y).square().mean();
          if (how.is_uneven && world.rank() == 0) loss = loss + model.of_first(x).square().mean();
          at::Tensor const of_unit = keel::unit(model.layers[1], model.front(x)).square().mean(), of_side = model.side(x).square().mean();
          bool const is_last = world.rank() == world.size() - 1;
          bool const is_left_out = i == 7 || (is_last && std::count(how.left_out.begin(), how.left_out.end(), i) > 0);
          if (!is_left_out || how.leaves_out_side) loss = loss + of_unit;
          if (!is_left_out || !how.leaves_out_side) loss = loss + of_side;
          return loss;
        });
      }
      auto const everything = step.gather_parameters();
      if (world.rank() == 0) found = copies_of(model.parameters());
    });
    return found;
  };
  std::vector<variant> const variants{{},
                                      {.changes_units = true},
                                      {.reads_whole = true},
                                      {.is_uneven = true},
                                      {.changes_units = true, .is_uneven = true},
                                      {.leaves_out_side = true},
                                      {.width = 20, .left_out = {0, 1, 5, 6, 8, 9}},
                                      {.width = 20, .changes_units = true, .left_out = {6}}};
  for (std::size_t i = 0; i < variants.size(); ++i) {
    variant const& how = variants[i];
    for (int const ranks : {2, 3}) {
      if (ranks == 3 && i > 0 && how.width != 20) continue;
      INFO(ranks << " ranks, variant " << i);
      CHECK(same_bits(run(cut<skips>(), ranks, how), run(whole<skips>(), ranks, how)));
      CHECK(same_bits(run(cut<skips, keel::accumulate<2>, clips>(), ranks, how), run(cut2<skips, keel::accumulate<2>, clips>(), ranks, how)));
    }
  }
}

TEST_CASE("a hook of micro_batch_end that gathers is an error on all ranks, which says where to do it") {
  single_thread const threads;
  for (bool const evaluates : {false, true}) {
    auto const words = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
      network model(0.0);
      keel::adamw optimizer(model.parameters(), 0.01);
      keel::trainer<cut<skips>> run{model, optimizer, world, {.updates = 8, .console_every = 0}};
      std::vector<at::Tensor> batches;
      for (std::int64_t i = 0; i < 8; ++i) batches.push_back(rows_of(i, world.rank()));
      auto const loss_of = [&](at::Tensor const& x) { return model.loss(x); };
      run.on([&](keel::event::micro_batch_end const& e) {
        if (e.update != 5) return;
        if (evaluates) run.evaluate(batches, loss_of);
        if (!evaluates) auto const everything = run.gather_parameters();
      });
      run.fit(batches, loss_of);
    });
    for (std::string const& one : words) {
      CHECK(has(one, "[E12]"));
      CHECK(has(one, "micro_batch_end"));
    }
  }
}

TEST_CASE("an evaluation that throws on all ranks, and is caught, changes no later update") {
  single_thread const threads;
  auto const run = [](auto recipe) {
    std::vector<at::Tensor> found;
    keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
      network model(0.0);
      keel::adamw optimizer(model.parameters(), 0.01);
      keel::trainer<decltype(recipe)> run{model, optimizer, world, {.updates = 12, .console_every = 0}};
      std::vector<at::Tensor> batches;
      for (std::int64_t i = 0; i < 12; ++i) batches.push_back(rows_of(i, world.rank()).slice(0, 0, 1));
      run.on([&](keel::event::update_end const& e) {
        if (e.update % 3 != 2) return;
        int calls = 0;
        CHECK_THROWS_AS(run.evaluate(batches, [&](at::Tensor const& x) {
          at::Tensor const y = keel::unit(model.layers[0], model.first(x).tanh());
          if (++calls == 5) throw std::runtime_error("of the metrics");
          return model.last(keel::unit(model.layers[1], y)).square().mean();
        }), std::runtime_error);
      });
      run.fit(batches, [&](at::Tensor const& x) { return model.loss(x); });
      auto const everything = run.gather_parameters();
      if (world.rank() == 0) found = copies_of(model.parameters());
    });
    return found;
  };
  CHECK(same_bits(run(cut<skips>()), run(whole<skips>())));
}

TEST_CASE("once the passes repeat, an update has one collective for each unit and pass, and one for each bucket") {
  single_thread const threads;
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    network model(0.0, at::kFloat, false, 400);
    keel::adamw optimizer(model.parameters(), 0.01);
    keel::step<cut<skips>> step{model, optimizer, world};
    std::vector<std::int64_t> counts;
    for (std::int64_t i = 0; i < 8; ++i) {
      auto const before = world.collectives();
      step([&] { return model.loss(rows_of(i, world.rank())); });
      counts.push_back(world.collectives() - before);
    }
    // The first backward pass, and the second forward pass, are what later ones repeat.
    CHECK(counts[2] < counts[1]);
    CHECK(counts[3] == counts[2] - 2);
    CHECK(counts[3] < counts[1] * 2 / 3);
    CHECK(std::vector<std::int64_t>(counts.begin() + 4, counts.end()) == std::vector<std::int64_t>(4, counts[3]));
  });
}

TEST_CASE("a rank whose data ends lets the others discard their update, evaluate and go on") {
  single_thread const threads;
  auto const run = [](auto recipe) {
    std::vector<at::Tensor> found;
    std::vector<std::int64_t> updates(2);
    auto const words = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
      network model(0.0);
      keel::adamw optimizer(model.parameters(), 0.01);
      keel::trainer<decltype(recipe)> run{model, optimizer, world, {.updates = 12, .console_every = 0}};
      std::vector<at::Tensor> batches;
      for (std::int64_t i = 0; i < 6 - world.rank() * 2; ++i) batches.push_back(rows_of(i, world.rank()));
      auto const loss_of = [&](at::Tensor const& rows) { return model.loss(rows); };
      run.evaluate_on(batches, loss_of);
      run.fit(batches, loss_of);
      updates[static_cast<std::size_t>(world.rank())] = run.updates();
      auto const everything = run.gather_parameters();
      if (world.rank() == 0) found = copies_of(model.parameters());
    });
    for (std::string const& one : words) CHECK(one.empty());
    CHECK(updates == std::vector<std::int64_t>{12, 12});
    return found;
  };
  using evaluates = keel::evaluation::every<1_epochs>;
  CHECK(same_bits(run(cut<skips, keel::checkpoint::never, evaluates>()), run(whole<skips, keel::checkpoint::never, evaluates>())));
}

TEST_CASE("a rank that calls no unit in its first micro-batches trains the bits of replicas, also with tied weights") {
  single_thread const threads;
  struct tied_layer : torch::nn::Module {
    at::Tensor shared;
    torch::nn::Linear own{register_module("own", torch::nn::Linear(20, 20))};
    explicit tied_layer(at::Tensor const& tied) : shared(register_parameter("shared", tied)) {}
    at::Tensor forward(at::Tensor const& x) { return own(x).matmul(shared); }
  };
  struct tied_network : torch::nn::Module {
    std::shared_ptr<tied_layer> one, two;
    tied_network() {
      at::manual_seed(5);
      at::Tensor const tied = at::randn({20, 20}) * 0.2;
      one = register_module("one", std::make_shared<tied_layer>(tied));
      two = register_module("two", std::make_shared<tied_layer>(one->shared));
    }
  };
  auto const run = [](auto recipe, int ranks) {
    std::vector<at::Tensor> found;
    keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
      tied_network model;
      std::vector<at::Tensor> trained{model.one->shared};
      for (auto const& layer : {model.one, model.two}) {
        for (at::Tensor const& parameter : layer->own->parameters()) trained.push_back(parameter);
      }
      keel::adamw optimizer(trained, 0.01);
      keel::step<decltype(recipe)> step{model, optimizer, world};
      for (std::int64_t i = 0; i < 8; ++i) {
        step([&] {
          if (i < 2 && world.rank() > 0) return keel::weighted_loss{at::zeros({}), 0.0};
          at::Tensor const x = (at::arange(20).view({1, 20}) * 0.1 + static_cast<double>(i + world.rank())).sin();
          return keel::weighted_loss{keel::unit(model.two, keel::unit(model.one, x)).square().mean(), 1.0};
        });
      }
      auto const everything = step.gather_parameters();
      if (world.rank() == 0) found = copies_of(trained);
    });
    return found;
  };
  for (int const ranks : {2, 3}) {
    CHECK(same_bits(run(cut<skips, keel::accept<"Z11">>(), ranks), run(whole<skips>(), ranks)));
    CHECK(same_bits(run(cut<skips, keel::accept<"Z11">, keel::accumulate<2>>(), ranks), run(cut2<skips, keel::accumulate<2>>(), ranks)));
  }
}

namespace {

/// Bytes that all ranks hold between two updates, and how many more at their peak in one.
template <class Recipe>
std::pair<double, double> memory_of(int ranks) {
  std::pair<double, double> found;
  keel::memory::budget budget;
  keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
    // 4.2 million parameters in units of 262,656.
    torch::nn::Sequential model;
    for (int i = 0; i < 16; ++i) model->push_back(torch::nn::Linear(512, 512));
    keel::sgd optimizer(model->parameters(), torch::optim::SGDOptions(0.01));
    keel::step<Recipe> step{*model, optimizer, world};
    auto const loss = [&] {
      at::Tensor x = at::ones({1, 512});
      for (std::size_t i = 0; i < model->size(); ++i) x = keel::unit(model->ptr<torch::nn::LinearImpl>(i), x);
      return x.square().mean();
    };
    step(loss);
    step(loss);
    keel::barrier(world);
    // One rank runs at a time, so all of them are between two updates here.
    std::int64_t const before = budget.allocated();
    keel::barrier(world);
    if (world.rank() == 0) budget.reset_peak();
    step(loss);
    keel::barrier(world);
    if (world.rank() == 0) found = {static_cast<double>(before), static_cast<double>(budget.peak() - before)};
    keel::barrier(world);
  });
  return found;
}

}  // namespace

TEST_CASE("between updates a rank holds shards only, and in a pass one unit more") {
  single_thread const threads;
  double const unit = (512 * 512 + 512) * 4.0, parameters = 16.0 * unit;
  for (int const ranks : {2, 4}) {
    auto const [of_gradients, peak_of_gradients] = memory_of<cut2<>>(ranks);
    auto const [of_all, peak_of_all] = memory_of<cut<>>(ranks);
    INFO(ranks << " ranks: held " << of_gradients / parameters << " and " << of_all / parameters << ", peak " << peak_of_gradients / unit
               << " and " << peak_of_all / unit << " units");
    // Less: the buffers of a gather, a unit and its share.
    CHECK((of_gradients - of_all) / ranks / parameters >= 1.0 - 1.0 / ranks - (1.0 + 1.0 / ranks) / 16 - 0.01);
    // The unit and its gradient.
    CHECK(peak_of_all / unit <= ranks * 2.1);
  }
}

namespace {

/// Trains with micro-batches in two pieces; one of these is NaN, or has no weight, on rank 0.
template <class Recipe>
std::vector<std::vector<at::Tensor>> train_in_pieces(int ranks, std::int64_t which, int piece, bool is_nan) {
  std::vector<std::vector<at::Tensor>> all(static_cast<std::size_t>(ranks));
  keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
    network model(0.0);
    keel::adamw optimizer(model.parameters(), 0.01);
    keel::step<Recipe> step{model, optimizer, world};
    bool has_failed = world.rank() != 0;
    for (std::int64_t i = 0; i < 8; ++i) {
      at::Tensor const batch = (at::arange(4 * 7).view({4, 7}) * 0.1 + static_cast<double>(i + world.rank())).sin();
      int calls = 0;
      step(batch, [&, i](at::Tensor const& rows) {
        if (!has_failed) {
          has_failed = true;
          throw std::bad_alloc();
        }
        bool const here = i == which && world.rank() == 0 && rows.size(0) == 2 && calls++ == piece;
        at::Tensor const loss = model.loss(here && is_nan ? rows * NAN : rows);
        return keel::weighted_loss{loss, here && !is_nan ? 0.0 : static_cast<double>(rows.size(0))};
      });
    }
    CHECK(step.pieces() == 2);
    auto const everything = step.gather_parameters();
    all[static_cast<std::size_t>(world.rank())] = copies_of(model.parameters());
  });
  return all;
}
template <class... Policies>
struct climbing2 : cut2<keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>, Policies...> {};

}  // namespace

TEST_CASE("a piece of a micro-batch that is not finite, or has no weight, on one rank is skipped or summed") {
  single_thread const threads;
  for (int const ranks : {2, 3}) {
    for (int const piece : {0, 1}) {
      for (bool const is_nan : {true, false}) {
        INFO(ranks << " ranks, piece " << piece << (is_nan ? " NaN" : " without weight"));
        auto const expected = train_in_pieces<climbing2<skips, keel::accumulate<2>>>(ranks, 5, piece, is_nan);
        auto const all = train_in_pieces<climbing<skips, keel::accumulate<2>>>(ranks, 5, piece, is_nan);
        for (auto const& one : all) CHECK(same_bits(one, expected.front()));
      }
    }
  }
}

TEST_CASE("a head beside frozen units trains, although no unit has a backward pass") {
  single_thread const threads;
  auto const run = [](auto recipe, int ranks) {
    std::vector<at::Tensor> found;
    keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
      network model(0.0);
      for (at::Tensor& one : model.parameters()) one.requires_grad_(false);
      for (at::Tensor& one : model.last->parameters()) one.requires_grad_(true);
      keel::adamw optimizer(model.last->parameters(), 0.01);
      keel::step<decltype(recipe)> step{model, optimizer, world};
      for (std::int64_t i = 0; i < 6; ++i) step([&] { return model.loss(rows_of(i, world.rank()).slice(0, 0, 1)); });
      auto const everything = step.gather_parameters();
      if (world.rank() == 0) found = copies_of(model.parameters());
    });
    return found;
  };
  for (int const ranks : {1, 2, 4}) CHECK(same_bits(run(cut<skips>(), ranks), run(whole<skips>(), ranks)));
}

TEST_CASE("hooks on one rank alone, and evaluations of different lengths, keep the ranks together") {
  single_thread const threads;
  std::vector<std::vector<at::Tensor>> parameters(3);
  std::vector<double> evaluated(3);
  auto const words = rank_error_messages(3, [&](keel::world_of_ranks const& world) {
    auto const rank = static_cast<std::size_t>(world.rank());
    network model(0.0);
    keel::adamw optimizer(model.parameters(), 0.01);
    keel::trainer<cut<skips, keel::checkpoint::never>> run{model, optimizer, world, {.updates = 8, .console_every = 0}};
    int seen = 0;
    if (rank == 0) run.on([&](keel::event::micro_batch_end const&) { ++seen; });
    std::vector<at::Tensor> batches;
    for (std::int64_t i = 0; i < 8; ++i) batches.push_back(rows_of(i, world.rank()));
    auto const loss_of = [&](at::Tensor const& rows) { return model.loss(rows); };
    run.fit(batches, loss_of);
    CHECK(seen == (rank == 0 ? 8 : 0));
    batches.resize(1 + 2 * rank);
    evaluated[rank] = run.evaluate(batches, loss_of);
    auto const everything = run.gather_parameters();
    parameters[rank] = copies_of(model.parameters());
  });
  CHECK(words == std::vector<std::string>(3));
  CHECK(same_bits(parameters[1], parameters[0]));
  CHECK(evaluated == std::vector<double>(3, evaluated[0]));
}

TEST_CASE("evaluations of several batches give the values of replicas, also if memory runs out on one rank, or end on all ranks") {
  single_thread const threads;
  enum class fault { none, out_of_memory, exception };
  auto const evaluate = [](auto recipe, fault what, std::int64_t rows, int at = 5) {
    std::vector<double> values(3);
    auto const words = rank_error_messages(3, [&](keel::world_of_ranks const& world) {
      network model(0.0);
      keel::adamw optimizer(model.parameters(), 0.01);
      keel::trainer<decltype(recipe)> run{model, optimizer, world, {.updates = 4, .console_every = 0}};
      std::vector<at::Tensor> batches;
      for (std::int64_t i = 0; i < 8; ++i) batches.push_back(at::arange(14).view({2, 7}) * 0.1 + static_cast<double>(i + world.rank()));
      run.fit(batches, [&](at::Tensor const& x) { return model.loss(x); });
      int calls = 0;
      auto const metrics = [&](at::Tensor const& x) {
        bool const here = world.rank() == 1 && ++calls == at && what != fault::none;
        at::Tensor const y = keel::unit(model.layers[0], model.first(x).tanh());
        if (here && what == fault::exception) throw std::runtime_error("of the metrics");
        if (here) throw std::bad_alloc();
        return model.last(keel::unit(model.layers[1], y)).square().mean();
      };
      if (world.rank() == 2) batches.resize(static_cast<std::size_t>(rows));
      for (int i = 0; i < 2; ++i) values[static_cast<std::size_t>(world.rank())] += run.evaluate(batches, metrics);
    });
    for (std::string const& one : words) {
      if (what == fault::exception) CHECK((has(one, "of the metrics") || has(one, "rank 1 has given up")));
      if (what != fault::exception) CHECK(one.empty());
    }
    return values;
  };
  using climbs = keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>;
  for (std::int64_t const rows : {8, 5}) {
    auto const expected = evaluate(whole<skips, climbs>(), fault::none, rows);
    CHECK(evaluate(cut<skips, climbs>(), fault::none, rows) == expected);
    for (int const at : {1, 2, 3, 5, 9}) {
      auto const starved = evaluate(cut<skips, climbs>(), fault::out_of_memory, rows, at);
      for (std::size_t rank = 0; rank < 3; ++rank) CHECK(std::abs(starved[rank] - expected[rank]) < 1e-5);
    }
    evaluate(cut<skips, climbs>(), fault::exception, rows);
  }
}

TEST_CASE("a model is whole again for another step, for export and evaluation, and an update while it is whole is an error") {
  single_thread const threads;
  keel::run_in_process(2, [&](keel::world_of_ranks const& world) {
    network model(0.0);
    at::Tensor kept;
    auto const train = [&](auto& step) {
      for (std::int64_t i = 0; i < 3; ++i) step([&] { return kept = model.loss(rows_of(i, world.rank())); });
    };
    auto const message_of = [](auto const& run) -> std::string {
      try {
        run();
      } catch (keel::error const& thrown) {
        return thrown.what();
      }
      return "";
    };
    {
      keel::adamw optimizer(model.parameters(), 0.01);
      keel::step<cut<skips>> step{model, optimizer, world};
      {
        // Before the first call of a unit.
        auto const everything = step.gather_parameters();
        at::NoGradGuard const no_grad;
        model.loss(rows_of(0, 0));
        CHECK(has(message_of([&] { train(step); }), "gather_parameters"));
      }
      train(step);
      CHECK(keel::detail::unit_parameters::is_freed(model.layers[1]->wide->weight));
      step.unshard_parameters();
      CHECK(model.layers[1]->wide->weight.abs().sum().item<double>() > 0.0);
    }
    model.loss(rows_of(0, 0)).backward();
    {
      keel::adamw optimizer(model.parameters(), 0.01);
      keel::step<cut<skips>> step{model, optimizer, world};
      train(step);
    }
    keel::adamw optimizer(model.parameters(), 0.01);
    CHECK(has(message_of([&] { keel::step<whole<skips>>{model, optimizer, world}; }), "unshard_parameters"));
  });
}

TEST_CASE("a gradient penalty, and units of another step, are errors that name the way out") {
  single_thread const threads;
  auto const penalty = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
    network model(0.0);
    keel::adamw optimizer(model.parameters(), 0.01);
    keel::step<cut<skips>> step{model, optimizer, world};
    for (int i = 0; i < 2; ++i) {
      step([&] {
        at::Tensor const x = at::ones({2, 7}).requires_grad_();
        at::Tensor const loss = model.loss(x);
        return loss + torch::autograd::grad({loss}, {x}, {}, true, true)[0].square().sum();
      });
    }
  });
  for (std::string const& one : penalty) CHECK(has(one, "create_graph"));
  auto const other = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
    network first(0.0), second(0.0);
    keel::adamw of_first(first.parameters(), 0.01), of_second(second.parameters(), 0.01);
    keel::step<cut<skips>> step{first, of_first, world};
    keel::step<cut<skips>> other_step{second, of_second, world};
    for (int i = 0; i < 2; ++i) {
      other_step([&] { return second.loss(at::ones({2, 7})); });
      step([&] { return first.loss(at::ones({2, 7})); });
    }
    step([&] { return first.loss(at::ones({2, 7})) + second.loss(at::ones({2, 7})); });
  });
  for (std::string const& one : other) CHECK(has(one, "another step"));
}

TEST_CASE("non-reentrant units under zero<3> train the bits of those under replicas, so A01 can be accepted") {
  single_thread const threads;
  using again = keel::recompute::non_reentrant;
  have_same_bits<whole<skips, again>, cut<skips, again, keel::accept<"A01">>>({.drops = 0.3});
  have_same_bits<cut2<skips, again, clips, keel::accumulate<2>>, cut<skips, again, clips, keel::accumulate<2>, keel::accept<"A01">>>(
      {.drops = 0.3});
}

namespace {

/// Layers before, in and after the units that only rank 0 uses, in buckets of their own.
struct uneven : torch::nn::Module {
  torch::nn::Linear before{nullptr}, after{nullptr};
  std::vector<torch::nn::Linear> layers;
  uneven() {
    at::manual_seed(8);
    before = register_module("before", torch::nn::Linear(200, 200));
    for (int i = 0; i < 3; ++i) layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(200, 200)));
    after = register_module("after", torch::nn::Linear(200, 200));
  }
  at::Tensor loss(at::Tensor const& x, bool uses_before, bool uses_after) {
    at::Tensor y = uses_before ? before(x).tanh() : x;
    for (auto const& one : layers) y = keel::unit(one, y).tanh();
    return (uses_after ? after(y) : y).square().mean();
  }
};

template <class Recipe>
std::vector<std::vector<at::Tensor>> train_uneven(int ranks, bool before, bool after) {
  std::vector<std::vector<at::Tensor>> all(static_cast<std::size_t>(ranks));
  keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
    uneven model;
    keel::adamw optimizer(model.parameters(), 0.001);
    keel::step<Recipe> step{model, optimizer, world};
    bool const is_first = world.rank() == 0;
    for (std::int64_t i = 0; i < 6; ++i) {
      at::Tensor const rows = (at::arange((1 + world.rank()) * 200).view({-1, 200}) * 0.01 + static_cast<double>(i)).sin();
      step([&] { return keel::weighted_loss{model.loss(rows, before && is_first, after && is_first), static_cast<double>(rows.size(0))}; });
    }
    auto const everything = step.gather_parameters();
    all[static_cast<std::size_t>(world.rank())] = copies_of(model.parameters());
  });
  return all;
}

}  // namespace

TEST_CASE("parameters that one rank alone uses, in several buckets and with other weights, are summed as under zero<2>") {
  single_thread const threads;
  for (int const ranks : {2, 3}) {
    for (int const which : {0, 1, 2, 3}) {
      INFO(ranks << " ranks, case " << which);
      auto const expected = train_uneven<cut2<skips>>(ranks, (which & 1) != 0, (which & 2) != 0);
      auto const all = train_uneven<cut<skips>>(ranks, (which & 1) != 0, (which & 2) != 0);
      for (auto const& one : all) CHECK(same_bits(one, expected.front()));
    }
  }
}

TEST_CASE("parameters that are made whole in the middle of an update are an error at its next micro-batch") {
  auto const words = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
    network model(0.0);
    keel::adamw optimizer(model.parameters(), 0.01);
    keel::step<cut<skips, keel::accumulate<2>>> step{model, optimizer, world};
    for (int i = 0; i < 3; ++i) step([&] { return model.loss(rows_of(i, world.rank())); });
    auto const everything = step.gather_parameters();
    step([&] { return model.loss(rows_of(4, world.rank())); });
  });
  for (std::string const& one : words) CHECK(has(one, "gather_parameters"));
}

TEST_CASE("what A01 prevents: recomputation outside of units reads parameters that were freed, and says which") {
  auto const words = rank_error_messages(2, [&](keel::world_of_ranks const& world) {
    network model(0.0);
    keel::adamw optimizer(model.parameters(), 0.01);
    keel::step<cut<skips>> step{model, optimizer, world};
    step([&] { return model.loss(rows_of(0, world.rank())); });
    step([&] {
      at::Tensor const y = keel::recompute([&](at::Tensor const& x) { return model.layers[0]->forward(x); },
                                           model.first(rows_of(1, world.rank())));
      return model.last(y).square().mean();
    });
  });
  for (std::string const& one : words) {
    CHECK(has(one, "outside of the unit layer0"));
    CHECK(has(one, "layer0.wide"));
  }
}
