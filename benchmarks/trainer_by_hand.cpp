// examples/trainer.cpp on LibTorch alone, as a careful engineer would write it: the peer of compile/trainer. Signals, checksums,
// exact resume and the record are left out.
#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <vector>

namespace {

constexpr std::int64_t updates = 200;
constexpr std::int64_t warmup = 10;
constexpr double highest_rate = 1e-2;

double rate_at(std::int64_t update) {
  if (update < warmup) return highest_rate * static_cast<double>(update + 1) / warmup;
  double const progress = static_cast<double>(update - warmup) / static_cast<double>(updates - warmup);
  return highest_rate * 0.5 * (1.0 + std::cos(3.14159265358979 * progress));
}

}  // namespace

int main() {
  at::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  torch::optim::AdamW optimizer(model->parameters(), highest_rate);
  std::vector<at::Tensor> const batches = at::randn({6400, 8}).split(64);

  std::filesystem::path const directory = "runs/trainer_by_hand";
  std::filesystem::create_directories(directory);
  std::int64_t update = 0;
  if (std::filesystem::exists(directory / "state.pt")) {
    torch::load(model, (directory / "model.pt").string());
    torch::load(optimizer, (directory / "optimizer.pt").string());
    at::Tensor state;
    torch::load(state, (directory / "state.pt").string());
    update = state.item<std::int64_t>();
  }
  int in_a_row = 0;
  while (update < updates) {
    for (at::Tensor const& x : batches) {
      if (update >= updates) break;
      optimizer.zero_grad();
      at::Tensor const loss = at::mse_loss(model->forward(x), x.sin().sum(1, true));
      loss.backward();
      double const norm = torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
      if (!std::isfinite(norm)) {
        if (++in_a_row == 10) return 1;
        continue;
      }
      in_a_row = 0;
      for (auto& group : optimizer.param_groups()) group.options().set_lr(rate_at(update));
      optimizer.step();
      ++update;
      if (update % 50 == 0) {
        std::printf("update %lld  loss %.4f  norm %.3f\n", static_cast<long long>(update), loss.item<double>(), norm);
        auto const save = [&](auto const& what, char const* name) {
          torch::save(what, (directory / name).string() + ".new");
          std::filesystem::rename((directory / name).string() + ".new", directory / name);
        };
        save(model, "model.pt");
        save(optimizer, "optimizer.pt");
        save(at::tensor(update), "state.pt");
      }
    }
  }
  return 0;
}
