#include <keel/memory/saved_tensor_policies.hpp>

#include "../support.hpp"

using namespace keel_test;

namespace {

struct result {
  std::vector<at::Tensor> gradients;
  double held;
};
template <class Make>
result run(Make const& make_scope) {
  keel::memory::budget budget;
  keel::libtorch::seed_random(at::kCPU, 2);
  torch::nn::Sequential model(torch::nn::Linear(64, 256), torch::nn::Linear(256, 256), torch::nn::Linear(256, 64));
  at::Tensor const x = at::randn({128, 64}).requires_grad_();
  auto const before = budget.allocated();
  at::Tensor loss;
  {
    [[maybe_unused]] auto const scope = make_scope(model->parameters());
    loss = at::tanh(model->forward(x).sin()).square().mean();
  }
  auto const held = static_cast<double>(budget.allocated() - before);
  loss.backward();
  result all{{x.grad()}, held};
  for (at::Tensor const& one : model->parameters()) all.gradients.push_back(one.grad());
  return all;
}
auto const as_it_is = [](auto const&) { return 0; };
auto const in_bf16 = [](std::vector<at::Tensor> const& kept) {
  return std::make_unique<keel::saved_tensor_scope>(keel::in_bfloat16(kept));
};

}  // namespace

TEST_CASE("activations saved in bf16 take less than two thirds of the memory and move gradients by less than a percent") {
  auto const plain = run(as_it_is);
  auto const packed = run(in_bf16);
  CHECK(packed.held < plain.held * 2 / 3);
  for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
    double const off = (packed.gradients[i] - plain.gradients[i]).norm().item<double>();
    CHECK(off < 0.01 * plain.gradients[i].norm().item<double>());
  }
}

TEST_CASE("parameters are kept as they are: a gradient that needs only weights has the same bits") {
  at::Tensor const weight = at::randn({64, 64}).requires_grad_();
  at::Tensor const x = at::randn({64, 64}).requires_grad_();
  auto const gradient = [&](bool packed) {
    x.mutable_grad() = at::Tensor();
    std::unique_ptr<keel::saved_tensor_scope> scope;
    if (packed) scope = in_bf16({weight});
    at::Tensor const y = x.matmul(weight).sum();
    scope.reset();
    y.backward();
    return x.grad().clone();
  };
  CHECK(same_bits(gradient(true), gradient(false)));
}

TEST_CASE("on the CPU there is nothing to move to the host, and small or integer tensors are left alone") {
  auto const to_host = [](std::vector<at::Tensor> const& kept) {
    return std::make_unique<keel::saved_tensor_scope>(keel::on_host(kept));
  };
  CHECK(same_bits(run(to_host).gradients, run(as_it_is).gradients));
  at::Tensor const small = at::randn({8}).requires_grad_();
  at::Tensor const picked = at::randn({64, 64}).requires_grad_();
  auto const scope = in_bf16({});
  (small.sin().sum() + picked.index_select(0, at::randint(64, {2000})).sum()).backward();
  CHECK(same_bits(small.grad(), small.detach().cos()));
  CHECK(picked.grad().sum().item<double>() == Approx(2000.0 * 64.0));
}
