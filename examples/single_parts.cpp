// Single parts of keel in a loop without a recipe.
#include <keel/checkpoint/safetensors.hpp>
#include <keel/clip/clip.hpp>
#include <keel/loss_scale/grad_scaler.hpp>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cstdio>

int main() {
  torch::nn::Linear model(4, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  keel::grad_scaler scaler{keel::loss_scale::dynamic<keel::loss_scale::initial<1024.0>>{}};

  for (int i = 0; i < 10; ++i) {
    optimizer.zero_grad();
    at::Tensor const x = at::randn({16, 4});
    // [single_parts]
    scaler.scale(at::mse_loss(model(x), x.sum(1, true))).backward();
    for (at::Tensor const& parameter : model->parameters()) parameter.mutable_grad().div_(scaler.factor());
    double const norm = keel::clip_grad_norm_(model->parameters(), 1.0);   // the norm before clipping; if it is not finite, the gradients are unchanged
    bool const overflow = !std::isfinite(norm);
    if (!overflow) optimizer.step();
    scaler.update(overflow);
    // [single_parts]
  }
  keel::save_safetensors("model.safetensors", {{"weight", model->weight}, {"bias", model->bias}});   // Python reads it too
  auto const back = keel::load_safetensors("model.safetensors");
  std::printf("%zu tensors, scale %.0f\n", back.tensors.size(), scaler.factor());
  return at::equal(back.tensors.at("weight"), model->weight) ? 0 : 1;
}
