// expect: U40
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/trainer/trainer.hpp>

struct mine : keel::recipe<keel::clip::global_norm<1.0>> {};

void train(torch::nn::Linear& model, torch::optim::AdamW& optimizer) {
#ifdef KEEL_TWIN
  keel::trainer<mine> short_run{model, optimizer, {.run_directory = "run", .updates = 200}};
  keel::trainer<mine> long_run{model, optimizer, {.run_directory = "run", .epochs = 3, .console = nullptr, .console_every = 10}};
  keel::trainer<mine> by_place{model, optimizer, {"run", 200}};
  keel::trainer<mine> as_usual{model, optimizer, {}};
#else
  keel::trainer<mine> short_run{model, optimizer, {.run_directory = "run", .update = 200}};
  keel::trainer<mine> long_run{model, optimizer, {.directory = "run", .epochs = 3, .console = nullptr, .log_every = 10}};
#endif
}
