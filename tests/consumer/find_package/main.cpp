#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <keel/keel.hpp>
#include <vector>

struct recipe : keel::recipe<keel::clip::global_norm<1.0>, keel::determinism::seeded<1>> {};

int main() {
  keel::seed<recipe>();
  torch::nn::Linear model(4, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::trainer<recipe> run{model, optimizer, {.updates = 3}};
  std::vector<at::Tensor> const batches(3, at::ones({8, 4}));
  keel::outcome const result = run.fit(batches, [&](at::Tensor const& x) { return model->forward(x).square().mean(); });
  return result.is<keel::result::finished>() && run.updates() == 3 ? 0 : 1;
}
