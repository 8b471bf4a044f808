// The loop is the program's; a trainer makes the updates, keeps the record, saves, resumes, and listens for signals.
// [trainer_loop]
#include <keel/keel.hpp>
#include <keel/collective/exit_code.hpp>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <cstdio>
#include <vector>

using namespace keel::literals;

struct steady : keel::recipe<
    keel::accumulate<2>,
    keel::clip::global_norm<1.0>,
    keel::nonfinite::skip<5>,
    keel::checkpoint::every<10_steps>,
    keel::determinism::seeded<1>> {};

int main() {
  keel::seed<steady>();
  torch::nn::Linear model(4, 1);
  keel::adamw optimizer(model->parameters(), 1e-2);
  at::Tensor const data = at::randn({15, 16, 4});   // 15 micro-batches of 16 rows
  std::vector<at::Tensor> const unseen{at::randn({64, 4})};
  auto const loss_of = [&](at::Tensor const& x) { return at::mse_loss(model(x), x.sum(1, true)); };
  constexpr std::int64_t epochs = 3;

  keel::trainer<steady> run{model, optimizer, {.run_directory = "runs/trainer_loop", .console_every = 10}};
  run.resume();                                     // sets run.cursor() to the checkpoint's position
  if (run.cursor().epoch >= epochs) return 0;       // an earlier run completed all epochs

  keel::signal_listener const signals;              // SIGTERM, SIGINT, SIGHUP, SIGUSR1
  while (run.cursor().epoch < epochs && !run.should_stop(signals)) {
    if (run.cursor().position < data.size(0)) {
      run.step(data[run.cursor().position], loss_of);
      continue;
    }
    run.end_epoch();                                // moves the cursor to the next epoch
    std::printf("epochs %lld  loss on unseen rows %.4f\n", static_cast<long long>(run.cursor().epoch), run.evaluate(unseen, loss_of));
    run.request_save();                             // a checkpoint at the next update boundary
  }
  run.flush();                                      // applies the last, partial update of accumulate<2>
  return keel::exit_code_of(run.finish(signals.received()));
}
// [trainer_loop]
