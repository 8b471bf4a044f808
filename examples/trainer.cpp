// The whole loop from a recipe: it resumes, updates, records, saves and stops by itself.
// [trainer]
#include <keel/keel.hpp>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/activation.h>
#include <torch/optim/adamw.h>

using namespace keel::literals;

// [recipe]
struct steady : keel::recipe<
    keel::clip::global_norm<1.0>,
    keel::nonfinite::skip<10>,
    keel::schedule::cosine<keel::schedule::warmup<10_steps>>,
    keel::checkpoint::every<50_steps>,
    keel::determinism::seeded<1>> {};
// [recipe]

int main() {
  keel::seed<steady>();
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);

  keel::trainer<steady> run{model, optimizer, {.run_directory = "runs/trainer", .updates = 200, .console_every = 50}};
  run.on([](keel::event::checkpoint_saved const& e) { std::printf("saved %s\n", e.path.c_str()); });
  std::vector<at::Tensor> const batches = at::randn({6400, 8}).split(64);   // or a loader, or a function of the epoch
  auto const loss_of = [&](at::Tensor const& x) { return at::mse_loss(model->forward(x), x.sin().sum(1, true)); };

  keel::outcome const result = run.fit(batches, loss_of);   // resumes automatically if runs/trainer contains a checkpoint
  return result.finished() ? 0 : 1;
}
// [trainer]
