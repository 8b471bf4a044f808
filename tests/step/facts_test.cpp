// What a look at the model and the optimizer adds to a recipe, and rules that only a running loop can break.
#include <torch/optim/lbfgs.h>

#include "../support.hpp"

using namespace keel::literals;
using namespace keel_test;

namespace {

template <class Recipe>
std::vector<std::string> refused_ids(torch::nn::Module& model, torch::optim::Optimizer& optimizer, std::int64_t updates = 0) {
  try {
    keel::step<Recipe> step{model, optimizer, updates};
  } catch (keel::recipe_error const& thrown) {
    CHECK(thrown.id() == thrown.ids().front());
    return thrown.ids();
  }
  return {};
}
using ids = std::vector<std::string>;

using halves = keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>;

struct silent {
  static constexpr char const* id = "Q50";
  static constexpr char const* text = "[Q50] nobody clips this hard. Fix: keel::clip::global_norm<1.0>.";
  static constexpr bool broken(keel::config const& c) { return c.clip.limit == 1e-9; }
  template <bool Holds, class Recipe>
  struct demand {};
};

struct short_run {
  static constexpr char const* id = "Q07";
  static constexpr char const* text = "[Q07] our runs have a hundred updates at least. Fix: options.updates.";
  static constexpr bool broken(keel::config const& c) { return c.run.known && c.run.updates < 100; }
  template <bool Holds, class Recipe>
  struct demand {
    static_assert(Holds, "[Q07] our runs have a hundred updates at least. Fix: options.updates.");
  };
};

}  // namespace

TEST_CASE("batch norm that the model holds is seen: O10 rejects halving, accept admits it, also for a model without it") {
  torch::nn::Sequential with(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8), torch::nn::Linear(8, 1));
  torch::nn::Sequential without(torch::nn::Linear(6, 1));
  torch::optim::SGD optimizer(with->parameters(), 0.1);
  torch::optim::SGD other(without->parameters(), 0.1);
  using accepts = keel::recipe<halves, keel::accept<"O10">>;
  CHECK(refused_ids<keel::recipe<halves>>(*with.ptr(), optimizer) == ids{"O10"});
  CHECK(refused_ids<keel::recipe<halves>>(*without.ptr(), other) == ids{});
  CHECK(refused_ids<accepts>(*with.ptr(), optimizer) == ids{});
  CHECK(refused_ids<accepts>(*without.ptr(), other) == ids{});
  with->eval();
  CHECK(refused_ids<keel::recipe<halves>>(*with.ptr(), optimizer) == ids{});
}

TEST_CASE("the parameters' types are seen: P06 for bf16 sums, also where only a rung would sum, P04 for scaled fp16") {
  auto const narrow = std::make_shared<small_module>();
  narrow->to(at::kBFloat16);
  torch::optim::SGD optimizer(narrow->parameters(), 0.1);
  CHECK(refused_ids<keel::recipe<keel::accumulate<2>>>(*narrow, optimizer) == ids{"P06"});
  CHECK(refused_ids<keel::recipe<halves>>(*narrow, optimizer) == ids{"P06"});
  CHECK(refused_ids<keel::recipe<keel::accumulate<2>, keel::accept<"P06">>>(*narrow, optimizer) == ids{});
  CHECK(refused_ids<keel::recipe<>>(*narrow, optimizer) == ids{});

  for (auto& parameter : narrow->first->parameters()) parameter.requires_grad_(false);
  narrow->second->to(at::kFloat);
  torch::optim::SGD of_adapter(narrow->second->parameters(), 0.1);
  CHECK(refused_ids<keel::recipe<keel::accumulate<2>>>(*narrow, of_adapter) == ids{});

  auto const half = std::make_shared<small_module>();
  half->to(at::kHalf);
  torch::optim::SGD half_optimizer(half->parameters(), 0.1);
  auto const found = refused_ids<keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<>>>(*half, half_optimizer);
  CHECK(std::count(found.begin(), found.end(), "P04") == 1);
}

TEST_CASE("a closure optimizer behind its base class is seen at construction") {
  auto const model = make_small();
  torch::optim::LBFGS optimizer(model->parameters(), 0.1);
  CHECK(refused_ids<keel::recipe<>>(*model, optimizer) == ids{});
  CHECK(refused_ids<keel::recipe<keel::clip::global_norm<1.0>>>(*model, optimizer) == ids{"G16"});
}

TEST_CASE("what a run reaches by a rung is said with the rung, also at construction") {
  auto const narrow = std::make_shared<small_module>();
  narrow->to(at::kBFloat16);
  torch::optim::SGD optimizer(narrow->parameters(), 0.1);
  try {
    keel::step<keel::recipe<halves>> step{*narrow, optimizer};
    FAIL("P06 is reached by the first rung");
  } catch (keel::recipe_error const& thrown) {
    CHECK(std::string(thrown.what()).find("reached by rung 1 of oom::ladder: [P06] ") != std::string::npos);
  }
}

TEST_CASE("a rule of the user's own is asked again with what the run knows") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  CHECK(refused_ids<keel::recipe<short_run>>(*model, optimizer, 99) == ids{"Q07"});
  CHECK(refused_ids<keel::recipe<short_run>>(*model, optimizer, 100) == ids{});
}

TEST_CASE("a loss function that runs backward by itself is rejected by rule Z16, and costs nothing") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<keel::recipe<>> step{model, optimizer};
  auto const before = copies_of(model->parameters());
  auto const batch = make_pair_batch(1);
  auto const loss = mean_squared_error(model);
  try {
    step(batch, [&](pair_batch const& b) {
      loss(b).backward();
      return loss(b);
    });
    FAIL("gradients counted twice, and nobody said so");
  } catch (keel::data_error const& thrown) {
    CHECK(thrown.id() == "Z16");
    CHECK(std::string(thrown.what()).find("first.weight") != std::string::npos);
  }
  CHECK(same_bits(before, model->parameters()));
  CHECK(step(batch, loss).is<keel::result::updated>());
}

TEST_CASE(
    "a loss function that runs backward by itself is rejected by rule Z16 from the second micro-batch on too, also if it cleans "
    "up") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<keel::recipe<keel::accumulate<4>>> step{model, optimizer};
  auto const loss = mean_squared_error(model);
  step(make_pair_batch(1), loss);
  CHECK_THROWS_AS(step(make_pair_batch(2),
                       [&](pair_batch const& b) {
                         loss(b).backward();
                         return loss(b);
                       }),
                  keel::data_error);
  // The refusal has dropped the window, and in LibTorch 2.x a first micro-batch that cleans up leaves no trace and no harm.
  step(make_pair_batch(1), loss);
  CHECK_THROWS_AS(step(make_pair_batch(2),
                       [&](pair_batch const& b) {
                         loss(b).backward();
                         model->zero_grad();
                         return loss(b);
                       }),
                  keel::data_error);
}

TEST_CASE("a recipe for another kind of device than the model's is rejected by rule X10") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  CHECK(refused_ids<keel::recipe<keel::device::cuda>>(*model, optimizer) == ids{"X10"});
  CHECK(refused_ids<keel::recipe<keel::device::cpu>>(*model, optimizer) == ids{});
}

TEST_CASE("a rule of the user's own that rejects without an error of the compiler's is rejected at construction") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  using refused = keel::recipe<silent, keel::clip::global_norm<1e-9>>;
  CHECK_THROWS_AS((keel::step<refused>{model, optimizer}), keel::recipe_error);
  CHECK_THROWS_AS((keel::trainer<refused>{model, optimizer}), keel::recipe_error);
}

namespace {
struct packed_rows {
  using facts = keel::data::is<keel::data::packed>;
  at::Tensor x;
  std::int64_t rows() const { return x.size(0); }
  packed_rows slice(std::int64_t begin, std::int64_t end) const { return {x.slice(0, begin, end)}; }
};
struct bounded : small_module {
  using facts = keel::model::has<keel::model::sequence_boundaries>;
};
struct ragged_source : std::vector<pair_batch> {
  using facts = keel::data::is<keel::data::ragged>;
  using std::vector<pair_batch>::vector;
};
}  // namespace

TEST_CASE("facts of a batch are judged with those of the model's type, and those of a source with the first batch") {
  auto const packed = [](auto const& model) {
    return [model](packed_rows const& batch) { return model->forward(batch.x).mean(); };
  };
  auto const open = make_small();
  auto const closed = std::make_shared<bounded>();
  torch::optim::SGD optimizer(open->parameters(), 0.1);
  torch::optim::SGD other(closed->parameters(), 0.1);
  keel::step<keel::recipe<>> attends_across{open, optimizer};
  keel::step<keel::recipe<>> stops{closed, other};
  try {
    attends_across(packed_rows{at::ones({4, 6})}, packed(open));
    FAIL("packed samples attend to each other");
  } catch (keel::recipe_error const& thrown) {
    CHECK(thrown.ids() == ids{"T01"});
  }
  CHECK(stops(packed_rows{at::ones({4, 6})}, packed(closed)).is<keel::result::updated>());

  keel::trainer<keel::recipe<keel::accumulate<2>>> run{open, optimizer, quiet({.updates = 2})};
  ragged_source const ragged{make_pair_batch(1), make_pair_batch(2), make_pair_batch(3), make_pair_batch(4)};
  try {
    run.fit(ragged, mean_squared_error(open));
    FAIL("a mean of means over ragged batches");
  } catch (keel::recipe_error const& thrown) {
    CHECK(thrown.ids() == ids{"B06"});
  }
}

TEST_CASE("a forward pass without gradients inside the loss leaves no weight without its gradient, in bf16 too") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  struct narrow : keel::recipe<keel::precision::bf16> {};
  keel::step<narrow> step{model, optimizer};
  auto const before = copies_of(model->parameters());
  step(make_pair_batch(1), [&](pair_batch const& b) {
    at::Tensor teacher;
    {
      at::NoGradGuard no_grad;
      teacher = model->forward(b.first);
    }
    return at::mse_loss(model->forward(b.first), teacher + 1.0);
  });
  for (std::size_t i = 0; i < before.size(); ++i) CHECK_FALSE(at::equal(before[i], model->parameters()[i]));
}

TEST_CASE("gradients that the loss takes of its own graph are no backward pass by itself") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<keel::recipe<>> step{model, optimizer};
  auto const outcome = step(make_pair_batch(1), [&](pair_batch const& b) {
    at::Tensor const x = b.first.clone().requires_grad_(true);
    at::Tensor const y = model->forward(x);
    auto const slope = torch::autograd::grad({y.sum()}, {x}, {}, true, true);
    return at::mse_loss(y, b.second) + slope[0].pow(2).mean();
  });
  CHECK(outcome.is<keel::result::updated>());
}

TEST_CASE("an evaluation under autocast inside a training step leaves no weight without its gradient") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.0);
  struct narrow : keel::recipe<keel::precision::bf16> {};
  keel::trainer<narrow> run{model, optimizer, quiet({.updates = 3})};
  auto const loss = mean_squared_error(model);
  std::vector<double> norms;
  run.on([&](keel::event::update_end const& e) { norms.push_back(e.gradient_norm); });
  auto const batch = make_pair_batch(1);
  run.step(batch, loss);
  // The cast weights that evaluation makes know no gradient; were they kept, the next backward pass would find none.
  run.step(batch, [&](pair_batch const& b) {
    std::vector<pair_batch> const held_out{make_pair_batch(2)};
    run.evaluate(held_out, loss);
    return loss(b);
  });
  run.evaluate(std::vector<pair_batch>{make_pair_batch(2)}, loss);
  run.step(batch, loss);
  REQUIRE(norms.size() == 3);
  CHECK(norms[0] > 0.0);
  CHECK(norms[1] == norms[0]);
  CHECK(norms[2] == norms[0]);
}

TEST_CASE("a checkpoint of parameters that are not finite is rejected by rule N13, and the one before it stays") {
  scratch_directory const directory;
  struct saves : keel::recipe<keel::checkpoint::every<1_steps>> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::trainer<saves> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 5})};
  run.on([&](keel::event::update_end const& e) {
    at::NoGradGuard no_grad;
    if (e.update == 2) model->second->weight[0][3] = std::numeric_limits<float>::infinity();
  });
  try {
    run.fit(std::vector<pair_batch>{make_pair_batch(1), make_pair_batch(2), make_pair_batch(3)}, mean_squared_error(model));
    FAIL("infinity was saved");
  } catch (keel::nonfinite_error const& thrown) {
    CHECK(thrown.id() == "N13");
    CHECK(std::string(thrown.what()).find("second.weight") != std::string::npos);
  }
  keel::checkpoint_store store(directory / "run" / "checkpoints");
  CHECK(store.updates() == std::vector<std::int64_t>{1});
  CHECK_NOTHROW(store.load(1));
}
