// The fp32 copy of a bf16 or fp16 parameter follows what the program writes into the parameter.
#include <torch/nn/pimpl.h>
#include <torch/serialize.h>

#include <sstream>

#include "../support.hpp"

using namespace keel_test;

namespace {

template <class Optimizer>
Optimizer make_optimizer(at::Tensor const& parameter) {
  if constexpr (std::is_same_v<Optimizer, keel::sgd>) {
    return keel::sgd({parameter}, torch::optim::SGDOptions(0.01).momentum(0.9));
  } else {
    return Optimizer({parameter}, 0.01);
  }
}

template <class Optimizer>
void update(Optimizer& optimizer, at::Tensor const& parameter, double gradient) {
  parameter.mutable_grad() = at::full_like(parameter, gradient);
  optimizer.step();
}

template <class Optimizer>
void follows(at::ScalarType type, std::vector<std::int64_t> const& sizes) {
  at::manual_seed(2);
  at::Tensor const parameter = at::randn(sizes).to(type).requires_grad_();
  auto optimizer = make_optimizer<Optimizer>(parameter);
  for (int i = 0; i < 3; ++i) update(optimizer, parameter, 0.5);
  at::Tensor const copy = optimizer.master_of(parameter).clone();
  REQUIRE(same_bits(copy.to(type), parameter.detach()));
  {
    at::NoGradGuard no_grad;
    parameter.copy_(parameter.to(at::kFloat).clamp(-0.25, 0.25));
  }
  at::Tensor const written = parameter.detach().clone();
  // An update at rate 0 shows what the copy holds, and moves nothing.
  optimizer.param_groups()[0].options().set_lr(0.0);
  update(optimizer, parameter, 0.5);
  CHECK(same_bits(parameter.detach(), written));
  at::Tensor const now = optimizer.master_of(parameter);
  at::Tensor const kept = copy.to(type).eq(written);
  // Elements that the program did not change keep the digits that the parameter cannot hold.
  CHECK(same_bits(now.masked_select(kept), copy.masked_select(kept)));
  CHECK(same_bits(now.masked_select(kept.logical_not()), written.masked_select(kept.logical_not()).to(at::kFloat)));
  CHECK(kept.any().item<bool>());
  CHECK_FALSE(kept.all().item<bool>());
}

}  // namespace

TEST_CASE("what the program writes into a bf16 or fp16 parameter is what the next update starts from") {
  for (auto const type : {at::kBFloat16, at::kHalf}) {
    follows<keel::adamw>(type, {300});
    follows<keel::adam>(type, {17, 9});
    follows<keel::sgd>(type, {300});
  }
}

TEST_CASE("a model that is loaded over a bf16 one, or moved, is trained from what was loaded") {
  auto const source = make_small(7);
  source->to(at::kBFloat16);
  std::stringstream file;
  torch::save(source, file);
  auto model = make_small(1);
  model->to(at::kBFloat16);
  keel::adamw optimizer(model->parameters(), 0.01);
  struct plain : keel::recipe<> {};
  keel::step<plain> step{model, optimizer};
  auto const loss = [&](pair_batch const& b) {
    return (model->forward(b.first.to(at::kBFloat16)) - b.second.to(at::kBFloat16)).square().mean();
  };
  step(make_pair_batch(0), loss);
  torch::load(model, file);
  optimizer.param_groups()[0].options().set_lr(0.0);
  step(make_pair_batch(1), loss);
  CHECK(same_bits(copies_of(model->parameters()), copies_of(source->parameters())));
  // Another storage under the same parameter.
  model->first->weight.set_data(at::full({8, 6}, 0.5, at::kBFloat16));
  step(make_pair_batch(2), loss);
  CHECK(same_bits(model->first->weight.detach(), at::full({8, 6}, 0.5, at::kBFloat16)));
}

TEST_CASE("where nothing is written the copies keep every bit, through a dry run and a resume too") {
  auto const run = [](bool tries) {
    auto const model = make_small(3);
    model->to(at::kBFloat16);
    keel::adamw optimizer(model->parameters(), 0.01);
    struct plain : keel::recipe<> {};
    keel::trainer<plain> trainer{model, optimizer, quiet()};
    auto const loss = [&](pair_batch const& b) {
      return (model->forward(b.first.to(at::kBFloat16)) - b.second.to(at::kBFloat16)).square().mean();
    };
    std::vector<at::Tensor> copies;
    for (std::uint64_t i = 0; i < 6; ++i) {
      trainer.step(make_pair_batch(i), loss);
      if (tries && i == 2) trainer.overfit_one_batch(make_pair_batch(9), loss, 5);
    }
    for (at::Tensor const& one : model->parameters()) copies.push_back(optimizer.master_of(one).clone());
    return copies;
  };
  CHECK(same_bits(run(true), run(false)));
}
