// Recomputed blocks in company: other threads, changes in place, gradients inside gradients, inputs that are not there.
#include <ATen/CPUGeneratorImpl.h>
#include <keel/recompute/unit.hpp>

#include <atomic>
#include <thread>

#include "../support.hpp"

using namespace keel_test;

namespace {

enum class way { hooks, reentrant };

template <class Forward, class... Inputs>
at::Tensor call(way how, Forward forward, Inputs const&... inputs) {
  return how == way::hooks ? keel::recompute(forward, inputs...) : keel::recompute_reentrant(forward, inputs...);
}

template <class Call>
std::string id_of(Call const& call) {
  try {
    call();
  } catch (keel::error const& thrown) {
    return thrown.id();
  } catch (std::exception const& thrown) {
    return std::string("LibTorch's words: ") + thrown.what();
  }
  return "nothing";
}

/// Draws from LibTorch's generator for as long as it lives, as a data loader's worker may.
class busy_thread {
 public:
  explicit busy_thread(std::int64_t pause_us)
      : thread_([this, pause_us] {
          while (!ends_) {
            at::rand({7});
            if (pause_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
          }
        }) {}
  ~busy_thread() {
    ends_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

/// How many of so many blocks were E16, and how many had a gradient that is not that of their own forward pass.
struct count {
  int refused = 0, wrong = 0;
};
count run_blocks(way how, int blocks, std::int64_t pause_us) {
  count found;
  busy_thread const other(pause_us);
  for (int i = 0; i < blocks; ++i) {
    at::Tensor const x = at::ones({64}).requires_grad_();
    at::Tensor const y = call(how, [](at::Tensor const& z) { return at::dropout(z * 2.0, 0.5, true); }, x);
    // Of this block the gradient is the output itself: 4 where it was kept, 0 where not.
    at::Tensor const expected = y.detach().clone();
    try {
      y.sum().backward();
      if (!same_bits(x.grad(), expected)) ++found.wrong;
    } catch (keel::error const& thrown) {
      CHECK(thrown.id() == "E16");
      CHECK(std::string(thrown.what()).find("another thread") != std::string::npos);
      ++found.refused;
    }
  }
  return found;
}

}  // namespace

TEST_CASE("recompute with dropout beside a thread that draws is never wrong in silence") {
  for (auto const how : {way::hooks, way::reentrant}) {
    for (std::int64_t const pause : {0, 50}) {
      auto const found = run_blocks(how, 2000, pause);
      INFO("way " << static_cast<int>(how) << ", pause " << pause << " us: " << found.refused << " of 2000 refused");
      CHECK(found.wrong == 0);
    }
    // Alone all of them are right.
    at::Tensor const x = at::ones({64}).requires_grad_();
    at::Tensor const y = call(how, [](at::Tensor const& z) { return at::dropout(z * 2.0, 0.5, true); }, x);
    y.sum().backward();
    CHECK(same_bits(x.grad(), y.detach()));
  }
}

TEST_CASE("a block that draws nothing does not mind who else does, and leaves the generator to them") {
  auto const deterministic = [](at::Tensor const& z) { return (z * 2.0).sin().exp(); };
  for (auto const how : {way::hooks, way::reentrant}) {
    busy_thread const other(0);
    for (int i = 0; i < 500; ++i) {
      at::Tensor const x = at::linspace(-1.0, 1.0, 64).requires_grad_();
      CHECK(id_of([&] { call(how, deterministic, x).sum().backward(); }) == "nothing");
    }
  }
}

TEST_CASE("a parameter that is changed in place before the backward pass is E16, as autograd itself rejects it") {
  for (auto const how : {way::hooks, way::reentrant}) {
    at::Tensor const weight = at::full({4, 4}, 2.0).requires_grad_();
    at::Tensor const x = at::ones({1, 4}).requires_grad_();
    auto const block = [&](at::Tensor const& z) { return z.mm(weight).tanh(); };
    at::Tensor const y = call(how, block, x).sum();
    {
      at::NoGradGuard no_grad;
      weight.add_(1.0);
    }
    CHECK(id_of([&] { y.backward(); }) == "E16");
    // What is changed after the backward pass is of the next.
    weight.mutable_grad() = at::Tensor();
    call(how, block, x).sum().backward();
    at::NoGradGuard no_grad;
    weight.add_(1.0);
  }
}

TEST_CASE("torch::autograd::grad through a reentrant block is A04 and adds to no gradient, alone and inside a step") {
  torch::nn::Linear layer(4, 4);
  at::Tensor const x = at::randn({2, 4}).requires_grad_();
  auto const energy = [&](at::Tensor const& z) { return keel::recompute_reentrant([&](at::Tensor const& v) { return layer(v).tanh(); }, z).sum(); };
  CHECK(id_of([&] { torch::autograd::grad({energy(x)}, {x}); }) == "A04");
  CHECK_FALSE(layer->weight.grad().defined());
  struct recomputes : keel::recipe<keel::recompute::reentrant> {};
  torch::optim::SGD optimizer(layer->parameters(), 0.1);
  keel::step<recomputes> step{layer, optimizer};
  CHECK(id_of([&] {
          step(x.detach(), [&](at::Tensor const& batch) {
            at::Tensor const in = batch.clone().requires_grad_();
            at::Tensor const out = keel::unit([&](at::Tensor const& v) { return layer(v).tanh(); }, in).sum();
            return torch::autograd::grad({out}, {in})[0].square().sum() + out;
          });
        }) == "A04");
}

TEST_CASE("a block that differentiates inside itself, as energy and force do, has the gradients of one that is not recomputed") {
  auto const run = [](bool recomputed, int blocks) {
    at::manual_seed(3);
    torch::nn::Linear first(3, 16), second(16, 1);
    auto const energy_and_force = [&](at::Tensor const& positions) {
      at::AutoGradMode with_gradients(true);
      at::Tensor const inside = positions.requires_grad() ? positions : positions.detach().requires_grad_();
      at::Tensor const energy = second(at::tanh(first(inside))).sum();
      at::Tensor const force = torch::autograd::grad({energy}, {inside}, {}, true, /*create_graph=*/true)[0];
      return at::cat({force.reshape({-1}), energy.reshape({1})});
    };
    at::Tensor const x = at::randn({5, 3}).requires_grad_();
    at::Tensor total = at::zeros({});
    for (int i = 0; i < blocks; ++i) {
      at::Tensor const all = recomputed ? keel::recompute(energy_and_force, x) : energy_and_force(x);
      total = total + all.square().sum();
    }
    total.backward();
    std::vector<at::Tensor> gradients = {x.grad()};
    for (auto const& layer : {first, second}) {
      for (at::Tensor const& one : layer->parameters()) gradients.push_back(one.grad());
    }
    return gradients;
  };
  CHECK(same_bits(run(true, 1), run(false, 1)));
  CHECK(same_bits(run(true, 3), run(false, 3)));
}

TEST_CASE("an optional input that is not there stays so in a recomputed block") {
  auto const run = [](int how, at::Tensor const& mask) {
    at::Tensor const x = at::linspace(-1.0, 1.0, 6).requires_grad_();
    auto const block = [](at::Tensor const& z, at::Tensor const& m) { return (m.defined() ? z * m : z).sin(); };
    at::Tensor const y = how == 0 ? block(x, mask) : (how == 1 ? keel::recompute(block, x, mask) : keel::recompute_reentrant(block, x, mask));
    y.sum().backward();
    return x.grad();
  };
  for (int how = 1; how < 3; ++how) {
    CHECK(same_bits(run(how, at::Tensor()), run(0, at::Tensor())));
    CHECK(same_bits(run(how, at::full({6}, 3.0)), run(0, at::full({6}, 3.0))));
  }
}
