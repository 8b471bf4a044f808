// Two models in one run: a GAN that learns eight clouds of points on a ring. One directory, one checkpoint, one record for both; kill
// it at any time and start it again, and it ends with the same parameters.
// [gan]
#include <keel/keel.hpp>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <cmath>
#include <cstdio>

using namespace keel::literals;

struct whole_run : keel::recipe<keel::checkpoint::every<100_steps>, keel::determinism::seeded<7>> {};
struct part_recipe : keel::recipe<keel::nonfinite::skip<10>> {};

torch::nn::Sequential make(std::int64_t in, std::int64_t out) {
  return torch::nn::Sequential(torch::nn::Linear(in, 64), torch::nn::BatchNorm1d(64), torch::nn::ReLU(),
                               torch::nn::Linear(64, 64), torch::nn::ReLU(), torch::nn::Linear(64, out));
}

int main(int count, char** arguments) {
  keel::seed<whole_run>();
  torch::nn::Sequential generator = make(16, 2), discriminator = make(2, 1);
  auto const options = torch::optim::AdamOptions(2e-4).betas({0.5, 0.999});
  torch::optim::Adam g_optimizer(generator->parameters(), options), d_optimizer(discriminator->parameters(), options);

  keel::run<whole_run> run{{.run_directory = count > 1 ? arguments[1] : "runs/gan", .console_every = 200}};
  keel::part<part_recipe> d{run, "discriminator", discriminator, d_optimizer};
  keel::part<part_recipe> g{run, "generator", generator, g_optimizer};

  auto const cloud = [](std::int64_t rows) {
    at::Tensor const angle = at::randint(8, {rows}).to(at::kFloat) * (2 * M_PI / 8);
    return at::stack({angle.cos(), angle.sin()}, 1) + 0.02 * at::randn({rows, 2});
  };
  std::vector<at::Tensor> const batches = cloud(64 * 100).split(64);
  auto const judged = [&](at::Tensor const& points, double is_real) {
    at::Tensor const out = discriminator->forward(points);
    return at::binary_cross_entropy_with_logits(out, at::full_like(out, is_real));
  };

  for (auto const& real : run.epochs(batches, 10)) {
    d.update(real, [&](at::Tensor const& points) {
      at::Tensor const fake = generator->forward(at::randn({64, 16})).detach();
      return keel::losses{{"real", judged(points, 1)}, {"fake", judged(fake, 0)}};
    });
    g.update([&] { return judged(generator->forward(at::randn({64, 16})), 1); });
  }
  run.finish();

  double sum = 0.0;
  for (at::Tensor const& one : generator->parameters()) sum += one.sum().item<double>();
  std::printf("generator %.17g after %lld updates\n", sum, static_cast<long long>(g.updates()));
}
// [gan]
