#include <keel/recompute/unit.hpp>

#include "../support.hpp"

#include <functional>

using namespace keel_test;

namespace {

enum class way { plain, hooks, reentrant };

template <class Forward>
at::Tensor call(way how, Forward forward, at::Tensor const& x) {
  if (how == way::hooks) return keel::recompute(forward, x);
  if (how == way::reentrant) return keel::recompute_reentrant(forward, x);
  return forward(x);
}

/// Blocks with dropout between two layers.
struct stack : torch::nn::Module {
  explicit stack(int blocks, std::int64_t width = 16, std::int64_t factor = 4) {
    for (int i = 0; i < blocks; ++i) {
      wide.push_back(register_module("wide" + std::to_string(i), torch::nn::Linear(width, factor * width)));
      narrow.push_back(register_module("narrow" + std::to_string(i), torch::nn::Linear(factor * width, width)));
    }
  }
  at::Tensor block(std::size_t i, at::Tensor const& x) {
    return x + at::dropout(narrow[i](at::gelu(wide[i](x))), 0.3, is_training());
  }
  at::Tensor forward(way how, at::Tensor x, bool nested) {
    auto const each = [this, how](at::Tensor y) {
      for (std::size_t i = 0; i < wide.size(); ++i)
        y = call(
            how, [this, i](at::Tensor const& z) { return block(i, z); }, y);
      return y;
    };
    return nested ? call(how, each, x) : each(x);
  }
  std::vector<torch::nn::Linear> wide, narrow;
};

struct result {
  std::vector<at::Tensor> gradients;
  at::Tensor next_random;
};
result run(way how, bool nested, bool bf16 = false) {
  keel::libtorch::seed_random(at::kCPU, 5);
  stack model(3);
  at::Tensor const x = at::randn({8, 16}).requires_grad_();
  {
    keel::autocast_scope const autocast(at::kCPU, bf16 ? keel::precision::kind::bf16 : keel::precision::kind::fp32);
    model.forward(how, x, nested).to(at::kFloat).square().mean().backward();
  }
  result all{{x.grad()}, at::rand({4})};
  for (at::Tensor const& one : model.parameters()) all.gradients.push_back(one.grad());
  return all;
}

}  // namespace

TEST_CASE("recompute_changes_no_bit: gradients and the next random number, with dropout, nested, in bf16, both ways") {
  for (bool const nested : {false, true}) {
    for (bool const bf16 : {false, true}) {
      auto const expected = run(way::plain, nested, bf16);
      for (way const how : {way::hooks, way::reentrant}) {
        auto const found = run(how, nested, bf16);
        CHECK(same_bits(found.gradients, expected.gradients));
        CHECK(same_bits(found.next_random, expected.next_random));
      }
    }
  }
}

TEST_CASE("blocks recompute inside blocks, deeper than one thread of the engine goes, and after a backward pass without them") {
  auto const options = at::TensorOptions().device(device());
  at::ones({2}, options).requires_grad_().sum().backward();
  at::Tensor const x = at::ones({2}, options).requires_grad_();
  std::function<at::Tensor(at::Tensor const&, int)> const nested = [&](at::Tensor const& y, int depth) {
    if (depth == 0) return y.sin();
    return keel::recompute_reentrant([&nested, depth](at::Tensor const& z) { return nested(z, depth - 1); }, y);
  };
  nested(x, 80).sum().backward();
  CHECK(same_bits(x.grad(), x.detach().cos()));
}

TEST_CASE("autocast that is off again when the backward pass comes was on when the block was called, and so it is recomputed") {
  auto const gradients = [](way how) {
    keel::libtorch::seed_random(at::kCPU, 5);
    stack model(2);
    at::Tensor const x = at::randn({8, 16}).requires_grad_();
    at::Tensor loss;
    {
      keel::autocast_scope const autocast(at::kCPU, keel::precision::kind::bf16);
      loss = model.forward(how, x, false).to(at::kFloat).square().mean();
    }
    loss.backward();
    CHECK_FALSE(keel::libtorch::get_autocast(at::kCPU).enabled);
    std::vector<at::Tensor> all = {x.grad()};
    for (at::Tensor const& one : model.parameters()) all.push_back(one.grad());
    return all;
  };
  auto const expected = gradients(way::plain);
  CHECK(same_bits(gradients(way::hooks), expected));
  CHECK(same_bits(gradients(way::reentrant), expected));
}

TEST_CASE("double backward goes through a recomputed block, and a retained graph can be gone through twice") {
  auto const both = [](way how) {
    keel::libtorch::seed_random(at::kCPU, 6);
    at::Tensor const w = at::randn({4, 4}).requires_grad_();
    at::Tensor const x = at::randn({3, 4}).requires_grad_();
    at::Tensor const y = call(
        how, [&](at::Tensor const& z) { return at::tanh(z.matmul(w)).sin(); }, x);
    auto const first = torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
    first[0].square().sum().backward({}, /*retain_graph=*/true);
    at::Tensor const once = w.grad().clone();
    y.square().sum().backward();
    return std::vector<at::Tensor>{first[0].detach(), once, w.grad(), x.grad()};
  };
  CHECK(same_bits(both(way::hooks), both(way::plain)));
}

TEST_CASE(
    "a frozen input trains the block's own parameters by hooks, and is rejected by rule A02 where it would train nothing") {
  at::Tensor const x = at::randn({3, 6});
  auto const model = make_small();
  auto const reference = make_small();
  auto const forward = [&](at::Tensor const& z) { return model->forward(z); };
  keel::recompute(forward, x).sum().backward();
  reference->forward(x).sum().backward();
  for (std::size_t i = 0; i < model->parameters().size(); ++i)
    CHECK(same_bits(model->parameters()[i].grad(), reference->parameters()[i].grad()));
  try {
    keel::recompute_reentrant(forward, x);
    FAIL("a frozen input went through");
  } catch (keel::error const& thrown) {
    CHECK(thrown.id() == "A02");
  }
}

TEST_CASE("the recomputation ends with the last tensor that the backward pass needs") {
  int begun = 0;
  int ended = 0;
  auto const forward = [&](at::Tensor const& z) {
    ++begun;
    at::Tensor const y = z.sin().exp();
    at::Tensor const moved = y + 1;
    ++ended;
    return moved;
  };
  at::Tensor const x = at::randn({3}).requires_grad_();
  keel::recompute(forward, x).sum().backward();
  CHECK(begun == 2);
  CHECK(ended == 1);
}

TEST_CASE("a block that does something else the second time is an error that says so, and one that throws throws through") {
  int calls = 0;
  at::Tensor const x = at::randn({3}).requires_grad_();
  auto const changes = [&](at::Tensor const& z) { return ++calls == 1 ? z.sin().cos() : z.sin(); };
  at::Tensor const y = keel::recompute(changes, x).sum();
  try {
    y.backward();
    FAIL("another forward pass went unnoticed");
  } catch (keel::error const& thrown) {
    CHECK(thrown.id() == "E16");
  }
  auto const throws = [&](at::Tensor const&) -> at::Tensor { throw std::runtime_error("the block itself"); };
  CHECK_THROWS_AS(keel::recompute(throws, x), std::runtime_error);
  CHECK_THROWS_AS(keel::recompute_reentrant(throws, x), std::runtime_error);
  // Nothing of it is left: the next pass saves as ever.
  at::Tensor const z = at::randn({3}).requires_grad_();
  z.sin().sum().backward();
  CHECK(same_bits(z.grad(), z.detach().cos()));
}

TEST_CASE("without gradients a block is only called, once") {
  int calls = 0;
  auto const forward = [&](at::Tensor const& z) {
    ++calls;
    return z * 2;
  };
  at::NoGradGuard no_grad;
  at::Tensor const x = at::ones({2});
  CHECK(same_bits(keel::recompute(forward, x), at::full({2}, 2.0)));
  CHECK(same_bits(keel::recompute_reentrant(forward, x), at::full({2}, 2.0)));
  CHECK(calls == 2);
}

TEST_CASE("a recomputed block holds its input and nothing else: ten times less than eight blocks hold without") {
  keel::memory::budget budget;
  stack model(8, 32, 6);
  at::Tensor const x = at::randn({256, 32}).requires_grad_();
  auto const held = [&](way how) {
    auto const before = budget.allocated();
    at::Tensor const y = model.forward(how, x, false).sum();
    auto const bytes = budget.allocated() - before;
    y.backward();
    model.zero_grad();
    return static_cast<double>(bytes);
  };
  held(way::plain);
  double const without = held(way::plain);
  CHECK(without / held(way::hooks) >= 10.0);
  CHECK(without / held(way::reentrant) >= 10.0);
}

TEST_CASE("a unit is the call itself, or recomputed as the scope of its thread says") {
  int calls = 0;
  auto const forward = [&](at::Tensor const& z) {
    ++calls;
    return z.sin().exp();
  };
  auto const calls_under = [&](keel::recompute_kind kind) {
    at::Tensor const x = at::ones({2}).requires_grad_();
    calls = 0;
    at::Tensor y;
    {
      keel::unit_scope const scope(kind);
      y = keel::unit(forward, x);
      CHECK(scope.units() == 1);
    }
    y.sum().backward();
    return calls;
  };
  CHECK(calls_under(keel::recompute_kind::none) == 1);
  CHECK(calls_under(keel::recompute_kind::non_reentrant) == 2);
  CHECK(calls_under(keel::recompute_kind::reentrant) == 2);
  CHECK(keel::unit_scope::kind() == keel::recompute_kind::none);
}

TEST_CASE("a unit is a module, a holder, a shared pointer or a function, and each is recomputed by its forward") {
  struct counting : torch::nn::Module {
    at::Tensor forward(at::Tensor const& x) {
      ++calls;
      return x.sin().exp();
    }
    int calls = 0;
  };
  struct counting_holder : torch::nn::ModuleHolder<counting> {
    using torch::nn::ModuleHolder<counting>::ModuleHolder;
  };
  auto const gradient_of = [](auto& block) {
    at::Tensor const x = at::ones({2}).requires_grad_();
    at::Tensor y;
    {
      keel::unit_scope const scope(keel::recompute::non_reentrant{});
      y = keel::unit(block, x);
      CHECK(scope.units() == 1);
    }
    y.sum().backward();
    return x.grad();
  };
  auto const pointer = std::make_shared<counting>();
  auto const function = [&](at::Tensor const& x) { return pointer->forward(x); };
  at::Tensor const expected = gradient_of(function);
  CHECK(pointer->calls == 2);
  CHECK(at::equal(gradient_of(*pointer), expected));
  CHECK(pointer->calls == 4);
  CHECK(at::equal(gradient_of(pointer), expected));
  CHECK(pointer->calls == 6);
  counting_holder holder(std::make_shared<counting>());
  CHECK(at::equal(gradient_of(holder), expected));
  CHECK(holder->calls == 2);
  // LibTorch's own, and one that nothing but the graph keeps alive.
  at::Tensor const x = at::ones({3, 4}).requires_grad_();
  at::Tensor y;
  {
    keel::unit_scope const scope(keel::recompute::non_reentrant{});
    y = keel::unit(torch::nn::Linear(4, 2), x);
  }
  y.sum().backward();
  CHECK(x.grad().defined());
}

namespace {

/// Rows through a stack whose blocks are units.
struct trained {
  explicit trained(std::uint64_t seed = 3) { keel::libtorch::seed_random(at::kCPU, seed); }
  std::shared_ptr<stack> model = [] {
    keel::libtorch::seed_random(at::kCPU, 3);
    return std::make_shared<stack>(4, 16, 6);
  }();
  keel::adamw optimizer{model->parameters(), torch::optim::AdamWOptions(0.01)};
  auto loss() {
    return [this](at::Tensor const& rows) {
      at::Tensor y = rows.requires_grad_();
      for (std::size_t i = 0; i < model->wide.size(); ++i)
        y = keel::unit([this, i](at::Tensor const& z) { return model->block(i, z); }, y);
      return y.square().mean();
    };
  }
};
std::vector<at::Tensor> some_rows(int count) {
  at::Generator generator = at::detail::createCPUGenerator(4);
  std::vector<at::Tensor> all;
  for (int i = 0; i < count; ++i) all.push_back(at::randn({64, 16}, generator));
  return all;
}
template <class Recipe>
std::vector<at::Tensor> parameters_after(std::int64_t limit = 0, std::int64_t* rungs = nullptr, std::int64_t* peak = nullptr) {
  trained with;
  keel::trainer<Recipe> run{with.model, with.optimizer, quiet()};
  keel::libtorch::seed_random(at::kCPU, 9);
  auto const rows = some_rows(6);
  keel::memory::budget budget;
  // The first update brings the optimizer's moments, which no rung can spare.
  run.step(rows[0], with.loss());
  auto const before = budget.allocated();
  budget.reset_peak();
  if (limit > 0) budget.limit(before + limit);
  for (std::size_t i = 1; i < rows.size(); ++i) run.step(rows[i], with.loss());
  if (rungs != nullptr) *rungs = run.rungs_taken();
  if (peak != nullptr) *peak = budget.peak() - before;
  return copies_of(with.model->parameters());
}

struct plain : keel::recipe<> {};
struct by_hooks : keel::recipe<keel::recompute::non_reentrant> {};
struct reentrant : keel::recipe<keel::recompute::reentrant> {};
struct climbs
    : keel::recipe<keel::oom::ladder<keel::oom::enable_recompute<keel::recompute::non_reentrant>, keel::oom::give_up>> {};

}  // namespace

TEST_CASE("a recipe with recompute trains to the bits of one without, and so does a run that its ladder brought there") {
  std::int64_t without = 0;
  std::int64_t with = 0;
  auto const expected = parameters_after<plain>(0, nullptr, &without);
  CHECK(same_bits(parameters_after<by_hooks>(0, nullptr, &with), expected));
  REQUIRE(with < without / 2);
  CHECK(same_bits(parameters_after<reentrant>(), expected));
  std::int64_t rungs = 0;
  CHECK(same_bits(parameters_after<climbs>((with + without) / 2, &rungs), expected));
  CHECK(rungs == 1);
}

TEST_CASE("recompute in a run whose loss has no unit is rejected by rule A21, with the parameters as they were") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
  keel::step<by_hooks> step{model, optimizer};
  auto const before = copies_of(model->parameters());
  try {
    step(make_pair_batch(1), mean_squared_error(model));
    FAIL("a recompute policy was accepted and ignored");
  } catch (keel::recipe_error const& thrown) {
    CHECK(thrown.id() == "A21");
  }
  CHECK(same_bits(model->parameters(), before));
}
