// State that is no parameter: what the program registers, and buffers, through updates that do not take place.
#include <torch/nn/functional/instancenorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/rnn.h>

#include <cmath>
#include <thread>
#include <type_traits>

#include "../deciding_device.hpp"
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

using namespace keel::literals;

/// Carries its hidden state from batch to batch.
struct recurrent : torch::nn::Module {
  recurrent()
      : lstm(register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(6, 5).batch_first(true)))),
        out(register_module("out", torch::nn::Linear(5, 1))) {}
  at::Tensor forward(at::Tensor const& x) {
    auto const [y, state] = lstm->forward(x.unsqueeze(1), std::make_tuple(hidden, cell));
    hidden = std::get<0>(state).detach();
    cell = std::get<1>(state).detach();
    ++calls;
    return out(y.squeeze(1));
  }
  void visit(auto& archive) {
    archive("hidden", hidden);
    archive("cell", cell);
    archive("calls", calls);
  }
  torch::nn::LSTM lstm;
  torch::nn::Linear out;
  at::Tensor hidden = at::zeros({1, 8, 5}), cell = at::zeros({1, 8, 5});
  std::int64_t calls = 0;
};

struct skipping : keel::recipe<keel::nonfinite::skip<5>, keel::checkpoint::every<4_steps>, keel::determinism::seeded<3>> {};
struct skipping_pairs : keel::recipe<keel::accumulate<2>, keel::nonfinite::skip<5>> {};

auto loss_of(std::shared_ptr<recurrent> const& model) {
  return [model](pair_batch const& b) { return at::mse_loss(model->forward(b.first), b.second); };
}
pair_batch spoiled(pair_batch batch) {
  batch.first[3][2] = NAN;
  return batch;
}

struct carried {
  std::vector<at::Tensor> tensors;
  std::int64_t calls;
  std::int64_t skipped;
};

/// Trains on batches of which some are spoiled, or on the others alone.
template <class Recipe, class Environment = keel::environment>
carried train(std::vector<int> const& bad, bool with_bad) {
  at::manual_seed(3);
  auto const model = std::make_shared<recurrent>();
  keel::adamw optimizer(model->parameters(), 0.05);
  scratch_directory const directory;
  keel::trainer<Recipe, Environment> run{model, optimizer, quiet({.run_directory = directory / "run"})};
  run.register_state("recurrent", *model);
  for (int i = 0; i < 12; ++i) {
    bool const spoils = std::find(bad.begin(), bad.end(), i) != bad.end();
    if (spoils && !with_bad) continue;
    auto const batch = make_pair_batch(static_cast<std::uint64_t>(i));
    run.step(spoils ? spoiled(batch) : batch, loss_of(model));
  }
  run.settle();
  auto tensors = copies_of(model->parameters());
  tensors.push_back(model->hidden.clone());
  tensors.push_back(model->cell.clone());
  return {tensors, model->calls, run.skipped()};
}

/// Counts the calls of a loss, in place and not.
struct counter {
  std::int64_t calls = 0;
  at::Tensor seen = at::zeros({2});
  void visit(auto& archive) {
    archive("calls", calls);
    archive("seen", seen);
  }
};

/// With what is not finite from the start.
struct kept {
  double level = 0.0, best = INFINITY, unknown = NAN;
  at::Tensor weights = at::ones({3}), mask = at::full({2}, -INFINITY), later;
  void visit(auto& archive) {
    archive("level", level);
    archive("best", best);
    archive("unknown", unknown);
    archive("weights", weights);
    archive("mask", mask);
    archive("later", later);
  }
};

/// Says which batch is next; the program asks it between micro-batches.
struct sampler {
  std::int64_t next = 0;
  std::int64_t seen_by_loss = 0;
  at::Tensor history = at::zeros({64});
  void visit(auto& archive) {
    archive("next", next);
    archive("seen_by_loss", seen_by_loss);
    archive("history", history);
  }
};

/// One layer's cache, and how often it was used.
struct cell {
  at::Tensor cache = at::zeros({2});
  std::int64_t used = 0;
  void visit(auto& archive) {
    archive("cache", cache);
    archive("used", used);
  }
};
/// What a program carries in containers.
struct containers {
  std::vector<at::Tensor> hidden{at::zeros({2}), at::ones({2})};
  std::vector<cell> cells = std::vector<cell>(2);
  std::map<std::string, at::Tensor> by_name{{"a", at::ones({1})}};
  std::optional<at::Tensor> last;
  std::vector<bool> flags{true};
  std::array<cell, 1> one;
  void visit(auto& archive) {
    archive("hidden", hidden);
    archive("cells", cells);
    archive("by_name", by_name);
    archive("last", last);
    archive("flags", flags);
    archive("one", one);
  }
  /// Whatever a loss may do: writes in place, replaces, lengthens, shortens.
  void use(std::int64_t call, at::Tensor const& loss) {
    at::NoGradGuard no_grad;
    hidden[0].add_(loss.detach());
    if (call % 2 == 0) {
      hidden.push_back(loss.detach() * at::ones({2}));
      cells.emplace_back().used = call;
      by_name["b" + std::to_string(call)] = loss.detach();
    } else {
      hidden.pop_back();
      cells.erase(cells.begin());
      by_name.erase(by_name.begin());
    }
    if (!cells.empty()) cells[0].cache.add_(loss.detach());
    last = last ? std::optional<at::Tensor>() : loss.detach();
    flags.push_back(call % 3 == 0);
    ++one[0].used;
    one[0].cache = one[0].cache + loss.detach();
  }
};

std::pair<std::string, keel::tensor_map> image_of(auto& state) {
  nlohmann::json object;
  keel::tensor_map tensors;
  keel::state_writer writer(object, tensors);
  state.visit(writer);
  for (auto& [name, tensor] : tensors) tensor = tensor.clone();
  return {object.dump(), tensors};
}
bool same_images(std::pair<std::string, keel::tensor_map> const& a, std::pair<std::string, keel::tensor_map> const& b) {
  if (a.first != b.first || a.second.size() != b.second.size()) return false;
  for (auto const& [name, tensor] : a.second) {
    if (b.second.count(name) == 0 || !same_bits(tensor, b.second.at(name))) return false;
  }
  return true;
}

/// Lists as many slots as there are, each by a name of the program's.
struct slots {
  std::int64_t count = 1;
  std::vector<at::Tensor> held{at::zeros({1})};
  void visit(auto& archive) {
    archive("count", count);
    held.resize(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < held.size(); ++i) archive(("slot" + std::to_string(i)).c_str(), held[i]);
  }
};

/// Not known until the loss finds it out.
struct unknown {
  double best = NAN;
  std::vector<float> scores{NAN};
  void visit(auto& archive) {
    archive("best", best);
    archive("scores", scores);
  }
};

/// A row of a table that the program holds.
struct row {
  at::Tensor values;
  void visit(auto& archive) { archive("values", values); }
};

template <class Error, class Call>
std::string id_of(Call const& call) {
  try {
    call();
  } catch (Error const& thrown) {
    return thrown.id();
  }
  return "nothing";
}

}  // namespace

TEST_CASE("an_lstm_that_carries_its_hidden_state_survives_a_nan: registered state is as it was before a skipped update") {
  auto const with = train<skipping>({3, 4, 9}, true);
  auto const without = train<skipping>({3, 4, 9}, false);
  CHECK(with.skipped == 3);
  CHECK(with.calls == without.calls);
  CHECK(same_bits(with.tensors, without.tensors));
  // The same where updates are decided on a device otherwise.
  auto const device = train<skipping, on_a_device>({3, 4, 9}, true);
  CHECK(device.skipped == 3);
  CHECK(same_bits(device.tensors, without.tensors));
}

TEST_CASE("registered state goes back with an accumulated update, and after an exception from the loss") {
  struct pairs : keel::recipe<keel::accumulate<2>, keel::nonfinite::skip<5>> {};
  auto const model = std::make_shared<recurrent>();
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  keel::trainer<pairs> run{model, optimizer, quiet()};
  run.register_state("recurrent", *model);
  run.step(make_pair_batch(0), loss_of(model));
  run.step(make_pair_batch(1), loss_of(model));
  at::Tensor const handle = model->hidden;
  at::Tensor const values = handle.clone();
  run.step(make_pair_batch(2), loss_of(model));
  CHECK(run.step(spoiled(make_pair_batch(3)), loss_of(model)).is<keel::result::skipped>());
  CHECK(model->hidden.is_same(handle));
  CHECK(same_bits(model->hidden, values));
  CHECK(model->calls == 2);
  run.step(make_pair_batch(4), loss_of(model));
  CHECK_THROWS_AS(run.step(make_pair_batch(5),
                           [&](pair_batch const& b) -> at::Tensor {
                             model->hidden.fill_(NAN);
                             loss_of(model)(b);
                             throw std::runtime_error("the loss itself");
                           }),
                  std::runtime_error);
  CHECK(same_bits(model->hidden, values));
  CHECK(model->calls == 2);
}

TEST_CASE("registered state begins again with a window that ran out of memory, and a dry run leaves it as it was") {
  struct cut : keel::recipe<keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
  counter state;
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.05);
  keel::trainer<cut> run{model, optimizer, quiet()};
  run.register_state("counter", state);
  auto const counting = [&](pair_batch const& b) {
    ++state.calls;
    state.seen.add_(1.0);
    if (b.first.size(0) > 4) C10_THROW_ERROR(OutOfMemoryError, "no memory for more than 4 rows");
    return at::mse_loss(model->forward(b.first), b.second);
  };
  run.step(make_pair_batch(0), counting);
  // Two halves; the whole one before them is forgotten.
  CHECK(state.calls == 2);
  CHECK(same_bits(state.seen, at::full({2}, 2.0)));
  std::vector<pair_batch> const batches = {make_pair_batch(1, 4), make_pair_batch(2, 4)};
  at::Tensor const handle = state.seen;
  run.lr_range_test(batches, counting, {.updates = 10});
  run.overfit_one_batch(batches[0], counting, 5);
  CHECK(state.calls == 2);
  CHECK(state.seen.is_same(handle));
  CHECK(same_bits(state.seen, at::full({2}, 2.0)));
}

TEST_CASE("a NaN in registered state, or one that comes into a buffer, never becomes the newest checkpoint (N13)") {
  struct saving : keel::recipe<keel::checkpoint::every<2_steps>, keel::determinism::seeded<3>> {};
  struct with_buffers : small_module {
    with_buffers() {
      mask = register_buffer("mask", at::full({3}, -INFINITY));
      scale = register_buffer("scale", at::ones({3}));
    }
    at::Tensor mask, scale;
  };
  enum class spoils { nothing, number, tensor, later, buffer };
  for (auto const what : {spoils::nothing, spoils::number, spoils::tensor, spoils::later, spoils::buffer}) {
    scratch_directory const directory;
    auto const begin = [&](std::int64_t updates, bool spoil) {
      keel::seed<saving>();
      auto const model = std::make_shared<with_buffers>();
      keel::adamw optimizer(model->parameters(), 0.05);
      kept state;
      keel::trainer<saving> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = updates})};
      run.register_state("kept", state);
      run.on([&](keel::event::update_end const& e) {
        if (!spoil || e.update != 3) return;
        if (what == spoils::number) state.level = NAN;
        if (what == spoils::tensor) state.weights = at::tensor({1.0F, INFINITY, 1.0F});
        if (what == spoils::later) state.later = at::full({1}, NAN);
        if (what == spoils::buffer) model->scale.mul_(INFINITY);
      });
      return id_of<keel::error>([&] {
        run.fit([](std::int64_t) { return std::vector<pair_batch>{make_pair_batch(1)}; },
                [model](pair_batch const& b) { return at::mse_loss(model->forward(b.first), b.second); });
      });
    };
    INFO("what: " << static_cast<int>(what));
    CHECK(begin(8, true) == (what == spoils::nothing ? "nothing" : "N13"));
    // What was saved before is whole, and the run goes on from it.
    CHECK(begin(10, false) == "nothing");
  }
}

namespace {

struct normalized : torch::nn::Module {
  normalized()
      : first(register_module("first", torch::nn::Linear(6, 8))),
        norm(register_module("norm", torch::nn::BatchNorm1d(8))),
        second(register_module("second", torch::nn::Linear(8, 1))) {}
  at::Tensor forward(at::Tensor const& x) { return second(norm(first(x))); }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear second;
};

}  // namespace

TEST_CASE("an exception from the loss leaves batch norm's statistics as they were, in the middle of a window too") {
  struct three : keel::recipe<keel::accumulate<3>> {};
  auto const model = std::make_shared<normalized>();
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  keel::step<three> step{model, optimizer};
  auto const good = [&](pair_batch const& b) { return at::mse_loss(model->forward(b.first), b.second); };
  for (std::uint64_t i = 0; i < 3; ++i) step(make_pair_batch(i), good);
  auto const before = copies_of(model->buffers());
  step(make_pair_batch(3), good);
  CHECK_FALSE(same_bits(copies_of(model->buffers()), before));
  CHECK_THROWS_AS(step(spoiled(make_pair_batch(4)),
                       [&](pair_batch const& b) -> at::Tensor {
                         good(b);
                         throw std::runtime_error("the loss itself");
                       }),
                  std::runtime_error);
  CHECK(same_bits(copies_of(model->buffers()), before));
  // A window that the program drops itself is the same.
  step(make_pair_batch(5), good);
  step.drop_update();
  CHECK(same_bits(copies_of(model->buffers()), before));
  // A window that was applied stays applied, whatever a hook throws after it.
  keel::trainer<keel::recipe<>> run{model, optimizer, quiet({.updates = 1})};
  run.on([](keel::event::update_end const&) { throw std::runtime_error("a hook"); });
  auto const parameters = copies_of(model->parameters());
  CHECK_THROWS_AS(run.fit(std::vector<pair_batch>{make_pair_batch(6)}, good), std::runtime_error);
  CHECK_FALSE(same_bits(copies_of(model->parameters()), parameters));
  CHECK_FALSE(same_bits(copies_of(model->buffers()), before));
}

TEST_CASE("a buffer that was resized inside a skipped update has its size and values again, on the host and on a device") {
  struct growing : small_module {
    growing() { cache = register_buffer("cache", at::ones({2})); }
    at::Tensor cache;
  };
  struct skips : keel::recipe<keel::nonfinite::skip<5>> {};
  auto const run = [](auto* environment) {
    auto const model = std::make_shared<growing>();
    keel::adamw optimizer(model->parameters(), 0.05);
    keel::step<skips, std::remove_pointer_t<decltype(environment)>> step{model, optimizer};
    auto const loss = [&](double factor) {
      return [&model, factor](pair_batch const& b) {
        at::NoGradGuard no_grad;
        model->cache.resize_({static_cast<std::int64_t>(model->cache.numel()) + 3}).fill_(factor);
        at::AutoGradMode with_gradients(true);
        return at::mse_loss(model->forward(b.first), b.second) * factor;
      };
    };
    step(make_pair_batch(0), loss(NAN));
    step.settle();
    CHECK(step.skipped() == 1);
    CHECK(same_bits(model->cache, at::ones({2})));
    CHECK(same_bits(model->named_buffers()["cache"], at::ones({2})));
    step(make_pair_batch(0), loss(2.0));
    step.settle();
    CHECK(same_bits(model->cache, at::full({5}, 2.0)));
  };
  run(static_cast<keel::step_environment*>(nullptr));
  run(static_cast<on_a_device*>(nullptr));
}

TEST_CASE("an instance norm that tracks statistics is counted twice by recompute, and A17 says so") {
  struct recomputes : keel::recipe<keel::recompute::non_reentrant> {};
  auto const built = [](bool tracks) {
    torch::nn::Sequential model(torch::nn::Linear(6, 8),
                                torch::nn::InstanceNorm1d(torch::nn::InstanceNorm1dOptions(8).track_running_stats(tracks)));
    torch::optim::SGD optimizer(model->parameters(), 0.05);
    return id_of<keel::recipe_error>([&] { keel::step<recomputes>{model, optimizer}; });
  };
  CHECK(built(true) == "A17");
  CHECK(built(false) == "nothing");
}

TEST_CASE("a run trains the same with evaluations and without where the loss changes registered state") {
  struct evaluates : keel::recipe<keel::evaluation::every<2_steps>, keel::determinism::seeded<3>> {};
  struct plain : keel::recipe<keel::determinism::seeded<3>> {};
  auto const train = []<class Recipe>(Recipe, bool by_hand) {
    at::manual_seed(5);
    auto const model = std::make_shared<recurrent>();
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    keel::trainer<Recipe> run{model, optimizer, quiet({.updates = 8})};
    run.register_state("recurrent", *model);
    std::vector<pair_batch> held, batches;
    for (std::uint64_t i = 0; i < 3; ++i) held.push_back(make_pair_batch(100 + i));
    for (std::uint64_t i = 0; i < 8; ++i) batches.push_back(make_pair_batch(i));
    if constexpr (std::is_same_v<Recipe, evaluates>) run.evaluate_on(held, loss_of(model));
    if (by_hand) {
      run.on([&](keel::event::evaluated const&) { ++model->calls; });
      for (auto const& batch : batches) {
        run.step(batch, loss_of(model));
        run.evaluate(held, loss_of(model));
      }
      run.finish();
    } else {
      run.fit(batches, loss_of(model));
    }
    std::vector<at::Tensor> all = copies_of(model->parameters());
    all.push_back(model->hidden.clone());
    all.push_back(model->cell.clone());
    return std::pair(all, model->calls);
  };
  auto const without = train(plain{}, false), with = train(evaluates{}, false), by_hand = train(plain{}, true);
  CHECK(same_bits(without.first, with.first));
  CHECK(without.second == with.second);
  CHECK(same_bits(without.first, by_hand.first));
  // What a hook of an evaluation changes stays.
  CHECK(by_hand.second == without.second + 8);
}

TEST_CASE("training goes on after evaluate() for a model that caches a mask lazily") {
  struct caching : small_module {
    at::Tensor masked(at::Tensor const& x) {
      if (!mask.defined()) mask = at::ones({6});
      return forward(x * mask);
    }
    at::Tensor mask;
  };
  auto const model = std::make_shared<caching>();
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  keel::trainer<keel::recipe<>> run{model, optimizer, quiet({.updates = 2})};
  auto const loss = [&](pair_batch const& b) { return at::mse_loss(model->masked(b.first.detach().requires_grad_()), b.second); };
  std::vector<pair_batch> const batches = {make_pair_batch(0), make_pair_batch(1)};
  double const before = run.evaluate(batches, loss);
  CHECK(std::isfinite(before));
  CHECK(run.fit(batches, loss).is<keel::result::finished>());
}

TEST_CASE("an evaluation puts the generator back, and leaves it alone where another thread draws meanwhile") {
  auto const model = std::make_shared<small_module>(0.3);
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  keel::trainer<keel::recipe<>> run{model, optimizer, quiet()};
  std::vector<pair_batch> const batches = {make_pair_batch(0), make_pair_batch(1)};
  at::manual_seed(3);
  at::Tensor const next = at::rand({4});
  // What the evaluation itself draws is of no consequence, by whatever operator.
  at::manual_seed(3);
  run.evaluate(batches, [&](pair_batch const& b) {
    static_cast<void>(at::randperm(5));
    static_cast<void>(at::randint(9, {2}));
    static_cast<void>(at::multinomial(at::ones({4}), 2));
    return at::mse_loss(at::dropout(model->forward(b.first), 0.5, true) + at::randn({1}), b.second);
  });
  CHECK(same_bits(at::rand({4}), next));
  // A worker's numbers do not come twice.
  at::manual_seed(3);
  at::Tensor worker;
  run.evaluate(batches, [&](pair_batch const& b) {
    if (!worker.defined()) std::thread([&] { worker = at::rand({4}); }).join();
    return at::mse_loss(model->forward(b.first), b.second);
  });
  CHECK(same_bits(worker, next));
  CHECK_FALSE(same_bits(at::rand({4}), next));
}

TEST_CASE("what the program changes between micro-batches, such as a sampler, is not undone by a skip, and what the loss changes is") {
  struct four : keel::recipe<keel::accumulate<4>, keel::nonfinite::skip<5>> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  keel::trainer<four> run{model, optimizer, quiet()};
  sampler order;
  run.register_state("order", order);
  std::vector<std::int64_t> taken;
  for (int i = 0; i < 12; ++i) {
    std::int64_t const row = order.next++;
    order.history[row] = 1.0;
    taken.push_back(row);
    auto const batch = make_pair_batch(static_cast<std::uint64_t>(row));
    run.step(row == 6 ? spoiled(batch) : batch, [&](pair_batch const& b) {
      ++order.seen_by_loss;
      return mean_squared_error(model)(b);
    });
  }
  std::vector<std::int64_t> expected;
  for (std::int64_t i = 0; i < 12; ++i) expected.push_back(i);
  CHECK(taken == expected);
  CHECK(run.skipped() == 1);
  CHECK(order.seen_by_loss == 8);
  CHECK(order.history.sum().item<double>() == 12.0);
}

TEST_CASE("state that is registered for checkpoints alone is copied by no update, and is saved") {
  struct saving : keel::recipe<keel::checkpoint::every<2_steps>, keel::nonfinite::skip<5>> {};
  scratch_directory const directory;
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  sampler large;
  {
    keel::trainer<saving> run{model, optimizer, quiet({.run_directory = directory / "run"})};
    run.register_state("large", large, keel::state_scope::checkpoints);
    auto const loss = [&](pair_batch const& b) {
      ++large.seen_by_loss;
      return mean_squared_error(model)(b);
    };
    run.step(make_pair_batch(0), loss);
    run.step(spoiled(make_pair_batch(1)), loss);
    CHECK(large.seen_by_loss == 2);
    run.step(make_pair_batch(2), loss);
  }
  sampler back;
  keel::trainer<saving> run{model, optimizer, quiet({.run_directory = directory / "run"})};
  run.register_state("large", back, keel::state_scope::checkpoints);
  CHECK(run.resume());
  CHECK(back.seen_by_loss == 3);
}

TEST_CASE("a mask of minus infinity that the first forward pass fills is no reason against a checkpoint") {
  struct saving : keel::recipe<keel::checkpoint::every<1_steps>> {};
  struct masked : small_module {
    masked() {
      mask = register_buffer("mask", at::zeros({2, 2}));
      none = register_buffer("none", at::empty({0}));
    }
    at::Tensor mask, none;
  };
  scratch_directory const directory;
  auto const model = std::make_shared<masked>();
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  keel::trainer<saving> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 2})};
  auto const result = run.fit(std::vector<pair_batch>{make_pair_batch(0), make_pair_batch(1)}, [&](pair_batch const& b) {
    at::NoGradGuard no_grad;
    model->mask.fill_(-INFINITY).triu_(1);
    at::AutoGradMode with_gradients(true);
    return at::mse_loss(model->forward(b.first), b.second);
  });
  CHECK(result.is<keel::result::finished>());
}

TEST_CASE("lists, maps and optionals of tensors and of states go back with a skipped update, on the host and on a device") {
  struct skips : keel::recipe<keel::accumulate<2>, keel::nonfinite::skip<5>> {};
  auto const go = [](auto* environment) {
    auto const model = make_small();
    keel::adamw optimizer(model->parameters(), 0.05);
    keel::trainer<skips, std::remove_pointer_t<decltype(environment)>> run{model, optimizer, quiet()};
    containers state;
    run.register_state("containers", state);
    std::int64_t calls = 0;
    auto const loss_of = [&](pair_batch const& b) {
      at::Tensor const loss = mean_squared_error(model)(b);
      state.use(calls++, loss);
      return loss;
    };
    for (std::uint64_t i = 0; i < 4; ++i) run.step(make_pair_batch(i), loss_of);
    run.settle();
    auto const before = image_of(state);
    at::Tensor const first = state.hidden[0];
    run.step(make_pair_batch(4), loss_of);
    run.step(spoiled(make_pair_batch(5)), loss_of);
    run.settle();
    CHECK(run.skipped() == 1);
    CHECK(same_images(image_of(state), before));
    CHECK(state.hidden[0].is_same(first));
    run.step(make_pair_batch(6), loss_of);
    run.step(make_pair_batch(7), loss_of);
    run.settle();
    CHECK_FALSE(same_images(image_of(state), before));
  };
  go(static_cast<keel::environment*>(nullptr));
  go(static_cast<on_a_device*>(nullptr));
}

TEST_CASE("lists, maps and optionals go back after an exception from the loss, in any micro-batch") {
  struct three : keel::recipe<keel::accumulate<3>> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  keel::trainer<three> run{model, optimizer, quiet()};
  containers state;
  run.register_state("containers", state);
  std::int64_t calls = 0;
  bool throws = false;
  auto const loss_of = [&](pair_batch const& b) {
    at::Tensor const loss = mean_squared_error(model)(b);
    state.use(calls++, loss);
    if (throws) throw std::runtime_error("the loss itself");
    return loss;
  };
  for (std::uint64_t good = 0; good < 3; ++good) {
    auto const before = image_of(state);
    for (std::uint64_t i = 0; i < good; ++i) run.step(make_pair_batch(i), loss_of);
    throws = true;
    CHECK_THROWS_AS(run.step(make_pair_batch(9), loss_of), std::runtime_error);
    throws = false;
    INFO("after " << good);
    CHECK(same_images(image_of(state), before));
  }
}

TEST_CASE("a list that the program lengthens between micro-batches stays, under names of keel's or of the program's") {
  struct pairs : keel::recipe<keel::accumulate<2>, keel::nonfinite::skip<5>> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  keel::trainer<pairs> run{model, optimizer, quiet()};
  slots own;
  containers state;
  run.register_state("own", own);
  run.register_state("containers", state);
  auto const loss_of = [&](pair_batch const& b) {
    at::NoGradGuard no_grad;
    own.held[0].add_(1.0);
    state.cells[0].cache.add_(1.0);
    state.hidden[0].add_(1.0);
    at::AutoGradMode with_gradients(true);
    return mean_squared_error(model)(b);
  };
  run.step(make_pair_batch(0), loss_of);
  own.held.push_back(at::full({1}, 7.0));
  ++own.count;
  state.cells.emplace_back().used = 7;
  CHECK(run.step(spoiled(make_pair_batch(1)), loss_of).is<keel::result::skipped>());
  CHECK(own.count == 2);
  CHECK(own.held[0].item<double>() == 0.0);
  CHECK(own.held[1].item<double>() == 7.0);
  // One field, with all that is in it, so that the loss's part stays too.
  CHECK(state.cells.size() == 3);
  CHECK(state.cells[0].cache.sum().item<double>() == 4.0);
  CHECK(state.hidden[0].sum().item<double>() == 0.0);
}

TEST_CASE("a number that is NaN until the loss knows it is NaN again after a skipped update") {
  struct pairs : keel::recipe<keel::accumulate<2>, keel::nonfinite::skip<5>> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  keel::trainer<pairs> run{model, optimizer, quiet()};
  unknown state;
  run.register_state("unknown", state);
  int calls = 0;
  auto const loss_of = [&](pair_batch const& b) {
    if (++calls == 2) {
      state.best = 3.0;
      state.scores = {1.0F, 2.0F};
    }
    return mean_squared_error(model)(b);
  };
  run.step(make_pair_batch(0), loss_of);
  CHECK(run.step(spoiled(make_pair_batch(1)), loss_of).is<keel::result::skipped>());
  CHECK(std::isnan(state.best));
  CHECK(state.scores.size() == 1);
}

TEST_CASE("a view that is registered goes back through the tensor that it is a view of, and an expanded one by itself") {
  struct skips : keel::recipe<keel::nonfinite::skip<5>> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  keel::trainer<skips> run{model, optimizer, quiet()};
  at::Tensor const table = at::zeros({4, 3});
  row column{table.select(1, 1)}, expanded{at::zeros({1}).expand({3})};
  run.register_state("column", column);
  run.register_state("expanded", expanded);
  at::Tensor const handle = column.values;
  CHECK(run.step(spoiled(make_pair_batch(0)), [&](pair_batch const& b) {
             column.values.fill_(5.0);
             expanded.values = expanded.values + 1.0;
             return mean_squared_error(model)(b);
           }).is<keel::result::skipped>());
  CHECK(column.values.is_same(handle));
  CHECK(same_bits(table, at::zeros({4, 3})));
  CHECK(same_bits(expanded.values, at::zeros({3})));
}
