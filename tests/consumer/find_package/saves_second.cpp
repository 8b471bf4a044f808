// A second file of the same program, with another recipe.
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <keel/keel.hpp>

struct skipping : keel::recipe<keel::nonfinite::skip<10>, keel::clip::value<0.5>, keel::accumulate<2>> {};

double loss_of_the_other_file() {
  at::manual_seed(4);
  torch::nn::Linear model(4, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<skipping> step{model, optimizer};
  double last = 0.0;
  for (int i = 0; i < 6; ++i) {
    auto const outcome = step(at::ones({8, 4}), [&](at::Tensor const& x) { return model->forward(x).square().mean(); });
    if (auto const* updated = outcome.updated()) last = updated->loss;
  }
  return last;
}
