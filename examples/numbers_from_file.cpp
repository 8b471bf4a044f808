// A trainer that reads every number from a JSON file: the policies are types, which the compiler checks, and their numbers are the file's,
// which the same rules check when it starts.
// [numbers_from_file]
#include <keel/json/load_numbers.hpp>
#include <keel/keel.hpp>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

using keel::given;

struct from_file : keel::recipe<
    keel::clip::global_norm<given>,
    keel::accumulate<given>,
    keel::nonfinite::skip<given>,
    keel::schedule::cosine<keel::schedule::warmup<given>>,
    keel::checkpoint::every<given>,
    keel::ema<given>,
    keel::determinism::seeded<given>> {};

int main(int count, char** arguments) try {
  std::ifstream stream(count > 1 ? arguments[1] : "examples/numbers.json");
  nlohmann::json const file = nlohmann::json::parse(stream);
  keel::numbers const numbers = keel::read_numbers<from_file>(file.at("keel"));
  std::int64_t const width = file.at("model").at("width"), rows = file.at("run").at("batch");

  at::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(8, width), torch::nn::Tanh(), torch::nn::Linear(width, 1));
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(file.at("model").at("learning_rate").get<double>()));

  keel::trainer<from_file> run{model, optimizer, numbers,
                               {.run_directory = count > 2 ? arguments[2] : "runs/numbers_from_file",
                                .updates = file.at("run").at("updates"),
                                .console_every = 100}};
  std::vector<at::Tensor> const batches = at::randn({rows * 100, 8}).split(rows);
  keel::outcome const ended = run.fit(batches, [&](at::Tensor const& x) { return at::mse_loss(model->forward(x), x.sin().sum(1, true)); });
  if (ended.gave_up()) return keel::exit_code_of(ended);
  std::printf("clipped %.3f of the updates; parameters %.17g\n", run.clip_fraction(), model->parameters()[0].sum().item<double>());
  return 0;
} catch (std::exception const& thrown) {
  std::fprintf(stderr, "%s\n", thrown.what());
  return 1;
}
// [numbers_from_file]
