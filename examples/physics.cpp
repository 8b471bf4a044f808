// A physics-informed network (Raissi et al. 2019) without any data: u'' + u' + 5 u = 0 with u(0) = 1, u'(0) = 0. Adam finds the valley, LBFGS its
// floor; the two are parts of one run on the same model, and a resume goes on in whichever phase it was.
// [physics]
#include <keel/keel.hpp>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>

#include <cmath>
#include <cstdio>

using namespace keel::literals;

struct whole_run : keel::recipe<keel::checkpoint::every<50_steps>, keel::determinism::seeded<2>> {};
struct rough : keel::recipe<keel::clip::global_norm<10.0>, keel::nonfinite::skip<10>> {};
struct fine : keel::recipe<keel::nonfinite::skip<3>> {};

int main(int count, char** arguments) {
  keel::seed<whole_run>();
  torch::nn::Sequential model(torch::nn::Linear(1, 24), torch::nn::Tanh(), torch::nn::Linear(24, 24), torch::nn::Tanh(),
                              torch::nn::Linear(24, 1));
  torch::optim::Adam adam(model->parameters(), 3e-3);
  torch::optim::LBFGS lbfgs(model->parameters(),
                            torch::optim::LBFGSOptions(1.0).max_iter(10).history_size(30).line_search_fn("strong_wolfe"));

  keel::run<whole_run> run{{.run_directory = count > 1 ? arguments[1] : "runs/physics", .console_every = 200}};
  keel::part<rough> first{run, "adam", model, adam};
  keel::part<fine> second{run, "lbfgs", model, lbfgs, keel::after(first)};

  at::Tensor const times = at::linspace(0, 4, 64).unsqueeze(1).requires_grad_();
  at::Tensor const start = at::zeros({1, 1}).requires_grad_();
  auto const slope = [](at::Tensor const& of, at::Tensor const& at) {
    return torch::autograd::grad({of.sum()}, {at}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  };
  auto const loss_of = [&] {
    at::Tensor const u = model->forward(times), velocity = slope(u, times), acceleration = slope(velocity, times);
    at::Tensor const u0 = model->forward(start);
    return keel::losses{{"equation", (acceleration + velocity + 5 * u).square().mean()},
                        {"position", (u0 - 1).square().sum(), 10.0},
                        {"velocity", slope(u0, start).square().sum(), 10.0}};
  };

  for ([[maybe_unused]] std::int64_t const i : run.iterations(600)) first.update(loss_of);
  for ([[maybe_unused]] std::int64_t const i : run.iterations(700)) second.update(loss_of);
  run.finish();

  at::NoGradGuard const no_grad;
  double const rate = std::sqrt(4.75);
  at::Tensor const exact = (-0.5 * times).exp() * ((rate * times).cos() + 0.5 / rate * (rate * times).sin());
  std::printf("largest error %.17g\n", (model->forward(times) - exact).abs().max().item<double>());
}
// [physics]
