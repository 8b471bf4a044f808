#include "../support.hpp"

using namespace keel_test;

namespace {

using keel::clip::global_norm;

std::vector<at::Tensor> gradients_of(std::vector<at::Tensor> const& parameters) {
  std::vector<at::Tensor> gradients;
  for (at::Tensor const& one : parameters) gradients.push_back(one.grad().defined() ? one.grad().clone() : at::Tensor());
  return gradients;
}

keel::gradients<keel::stage::checked> checked(keel::gradients<keel::stage::scaled, keel::accumulation::partial> window) {
  auto result = std::move(window).complete().unscale().check();
  return std::get<keel::gradients<keel::stage::checked>>(std::move(result));
}

}  // namespace

TEST_CASE("one micro-batch leaves the very gradients of a plain backward pass") {
  auto const model = make_small();
  auto const parameters = model->parameters();
  auto const loss = mean_squared_error(model);
  loss(make_pair_batch(1)).backward();
  auto const plain = gradients_of(parameters);

  auto window = keel::begin_update(parameters);
  window.add(loss(make_pair_batch(1)), 8.0);
  checked(std::move(window));
  CHECK(same_bits(gradients_of(parameters), plain));
}

TEST_CASE("ragged micro-batches weigh what they hold: the window is the mean over all rows") {
  auto const model = make_small();
  model->to(at::kDouble);
  auto const parameters = model->parameters();
  auto const loss_of = [&](at::Tensor const& x) { return at::mse_loss(model->forward(x), x.sum(1, true)); };
  at::manual_seed(2);
  at::Tensor const all = at::randn({15, 6}, at::kDouble);
  loss_of(all).backward();
  auto const whole = gradients_of(parameters);

  auto window = keel::begin_update(parameters, 1024.0);
  std::int64_t begin = 0;
  for (std::int64_t const rows : {8, 4, 2, 1}) {
    window.add(loss_of(all.slice(0, begin, begin + rows)), static_cast<double>(rows));
    begin += rows;
  }
  auto good = checked(std::move(window));
  double const norm = good.norm();
  good.apply_factor();
  auto const pieces = gradients_of(parameters);
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(at::allclose(pieces[i], whole[i], 1e-12, 1e-14));
  CHECK(norm == Approx(keel::measure_gradients(whole).norm).epsilon(1e-12));
}

TEST_CASE("parameters whose gradients autograd lays into one memory are added to and unscaled once each") {
  std::vector<at::Tensor> const parameters{at::ones({1, 4}).requires_grad_(true), at::ones({1, 4}).requires_grad_(true)};
  auto const loss_of = [&](double of) { return (parameters[0].squeeze(0) + parameters[1].squeeze(0)).square().sum() * of; };
  loss_of(1.0).backward();
  REQUIRE(parameters[0].grad().data_ptr() == parameters[1].grad().data_ptr());

  auto window = keel::begin_update(parameters, 8.0);
  window.add(loss_of(1.0));
  window.add(loss_of(3.0));
  auto good = checked(std::move(window));
  CHECK(good.norm() == Approx(8.0 * std::sqrt(8.0)));
  good.apply_factor();
  for (at::Tensor const& one : parameters) CHECK(at::allclose(one.grad(), at::full({1, 4}, 8.0)));
}

TEST_CASE("clipping by global norm scales to the limit and reports the norm from before") {
  auto const model = make_small();
  auto const parameters = model->parameters();
  for (double const limit : {1e-3, 0.5, 1e9}) {
    auto window = keel::begin_update(parameters);
    window.add(mean_squared_error(model)(make_pair_batch(4)));
    auto good = checked(std::move(window));
    double const before = good.norm();
    keel::clip_global_norm(gradients_of(parameters), before, limit);  // on copies: shows that the call needs no stage
    double const limit_or_norm = std::min(limit, before);
    std::vector<at::Tensor> live;
    for (auto const& one : parameters) live.push_back(one.grad());
    keel::clip_global_norm(live, before, limit);
    CHECK(keel::measure_gradients(live).norm == Approx(limit_or_norm).epsilon(1e-6));
    CHECK(good.norm() == before);
  }
}

TEST_CASE("clipping by value bounds every element and leaves smaller ones alone") {
  at::Tensor const parameter = at::zeros({4}).requires_grad_();
  std::vector<at::Tensor> const parameters = {parameter};
  auto window = keel::begin_update(parameters);
  at::Tensor const slope = at::tensor({-3.0F, -0.25F, 0.5F, 7.0F});
  window.add((parameter * slope).sum());
  auto clipped = checked(std::move(window)).clip<keel::clip::value<0.5>>();
  CHECK(same_bits(parameter.grad(), at::tensor({-0.5F, -0.25F, 0.5F, 0.5F})));
  CHECK(clipped.norm() == Approx(std::sqrt(9.0 + 0.0625 + 0.25 + 49.0)));
}

TEST_CASE("the library-style clip_grad_norm_ leaves non-finite gradients as evidence") {
  at::Tensor const parameter = at::zeros({3}).requires_grad_();
  parameter.mutable_grad() = at::tensor({1.0F, INFINITY, 2.0F});
  std::vector<at::Tensor> const parameters = {parameter};
  CHECK_FALSE(std::isfinite(keel::clip_grad_norm_(parameters, 1.0)));
  CHECK(same_bits(parameter.grad(), at::tensor({1.0F, INFINITY, 2.0F})));

  parameter.mutable_grad() = at::tensor({3.0F, 0.0F, 4.0F});
  CHECK(keel::clip_grad_norm_(parameters, 1.0) == Approx(5.0));
  CHECK(keel::measure_gradients(std::vector<at::Tensor>{parameter.grad()}).norm == Approx(1.0));

  // Two parameters whose gradients autograd lays into the same memory.
  at::Tensor const x = at::ones({2, 3}).requires_grad_();
  at::Tensor const y = at::ones({6}).requires_grad_();
  (x.view({-1}) + y.view({-1})).square().sum().backward();
  std::vector<at::Tensor> const both = {x, y};
  keel::clip_grad_norm_(both, 1.0);
  CHECK(keel::measure_gradients(std::vector<at::Tensor>{x.grad(), y.grad()}).norm == Approx(1.0));
}

TEST_CASE("a parameter without a gradient is no part of the window and no error") {
  at::Tensor const used = at::ones({2}).requires_grad_();
  at::Tensor const unused = at::ones({2}).requires_grad_();
  std::vector<at::Tensor> const parameters = {unused, used};
  auto window = keel::begin_update(parameters);
  window.add(used.sum());
  auto clipped = checked(std::move(window)).clip<global_norm<1.0>>();
  CHECK(clipped.norm() == Approx(std::sqrt(2.0)));
  CHECK_FALSE(unused.grad().defined());
}

TEST_CASE("gradients of bf16 parameters add up in fp32, and an optimizer of LibTorch's gets them in its own type") {
  for (auto const type : {at::kBFloat16, at::kHalf}) {
    at::Tensor const parameter = at::zeros({4}, type).requires_grad_();
    std::vector<at::Tensor> const parameters = {parameter};
    auto window = keel::begin_update(parameters);
    // In eight bits 256 + 1 is 256.
    window.add((parameter * 256).sum());
    CHECK(parameter.grad().scalar_type() == type);
    for (int i = 0; i < 100; ++i) window.add((parameter * 1).sum());
    CHECK(parameter.grad().scalar_type() == at::kFloat);
    auto clipped = std::get<keel::gradients<keel::stage::checked>>(std::move(window).complete().unscale().check())
                       .clip<keel::clip::none>();
    CHECK(clipped.norm() == Approx(2.0 * 356.0 / 101.0));
    torch::optim::SGD optimizer(parameters, 1.0);
    std::move(clipped).step(optimizer);
    CHECK(parameter.grad().scalar_type() == type);
    CHECK(parameter[0].item<double>() == Approx(-356.0 / 101.0).epsilon(0.01));
  }
}
