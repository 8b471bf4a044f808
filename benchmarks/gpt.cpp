// A whole update of a small transformer, about 20 ms: the trainer with every policy that has a mechanism, the loop that one
// would write by hand around the same update engine, and the one around LibTorch's clip_grad_norm_ and AdamW. Turn by turn in
// one process, medians. Prints one JSON row a line.
#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>
// After what it needs and does not include.
#include <torch/nn/utils/clip_grad.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <keel/keel.hpp>
#include <string>
#include <vector>

#include "../examples/char_gpt/model.hpp"
#include "measure.hpp"

namespace {

using namespace keel::literals;

struct guarded
    : keel::recipe<keel::precision::fp32, keel::clip::global_norm<1.0>, keel::nonfinite::skip<10>, keel::spike::skip<>,
                   keel::schedule::cosine<keel::schedule::total<1000000_steps>, keel::schedule::warmup<100_steps>>,
                   keel::checkpoint::every<1000000_steps>, keel::determinism::seeded<1>,
                   keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
/// The same with a moving average; its peer keeps one by hand.
struct averaging : keel::recipe<keel::clip::global_norm<1.0>, keel::nonfinite::skip<10>, keel::spike::skip<>,
                                keel::schedule::cosine<keel::schedule::total<1000000_steps>, keel::schedule::warmup<100_steps>>,
                                keel::checkpoint::every<1000000_steps>, keel::determinism::seeded<1>,
                                keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>, keel::ema<0.999>> {};

constexpr char_gpt::model_size size{.vocabulary = 96, .context = 64, .width = 128, .heads = 4, .layers = 5, .dropout = 0.0};
constexpr std::int64_t rows = 2;

char_gpt::gpt make_model() {
  at::manual_seed(1);
  return char_gpt::gpt(size);
}
at::Tensor loss_of(char_gpt::gpt& model, at::Tensor const& ids) {
  at::Tensor const logits = model->forward(ids.slice(1, 0, size.context));
  return at::cross_entropy_loss(logits.reshape({-1, size.vocabulary}), ids.slice(1, 1, size.context + 1).reshape({-1}));
}
/// Once an update, whatever the optimizer.
template <class Optimizer>
void backward(char_gpt::gpt& model, Optimizer& optimizer, at::Tensor const& ids) {
  for (auto& group : optimizer.param_groups()) {
    for (auto& parameter : group.params()) parameter.mutable_grad() = at::Tensor();
  }
  loss_of(model, ids).backward();
}

class scratch {
 public:
  scratch() : path_(std::filesystem::temp_directory_path() / ("keel-benchmark-" + std::to_string(::getpid()))) {}
  ~scratch() { std::filesystem::remove_all(path_); }
  std::filesystem::path const& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

template <class Recipe>
struct trained {
  explicit trained(std::filesystem::path const& directory, std::FILE* console)
      : run{model,
            optimizer,
            {.run_directory = directory, .console = console, .mode = keel::console_mode::lines, .console_every = 10}} {}
  void update(at::Tensor const& ids) {
    run.step(ids, [this](at::Tensor const& batch) { return loss_of(model, batch); });
  }
  char_gpt::gpt model = make_model();
  keel::adamw optimizer{model->parameters(), torch::optim::AdamWOptions(1e-4)};
  keel::trainer<Recipe> run;
};

void compare(int threads) {
  constexpr int rounds = 201;
  at::set_num_threads(threads);
  scratch const directory;
  std::FILE* const nowhere = std::fopen("/dev/null", "w");
  trained<guarded> full(directory.path() / "full", nowhere);
  trained<averaging> with_average(directory.path() / "average", nowhere);
  auto bare = make_model();
  keel::adamw bare_optimizer(bare->parameters(), torch::optim::AdamWOptions(1e-4));
  auto hand_averaged = make_model();
  keel::adamw hand_averaged_optimizer(hand_averaged->parameters(), torch::optim::AdamWOptions(1e-4));
  std::vector<at::Tensor> averages;
  for (auto const& one : hand_averaged->parameters()) averages.push_back(one.detach().clone());
  auto stock = make_model();
  torch::optim::AdamW stock_optimizer(stock->parameters(), torch::optim::AdamWOptions(1e-4));

  std::vector<double> times[5];
  for (int round = -10; round < rounds; ++round) {
    at::Tensor const ids = at::randint(size.vocabulary, {rows, size.context + 1});
    std::function<void()> const updates[] = {[&] { full.update(ids); },
                                             [&] {
                                               backward(bare, bare_optimizer, ids);
                                               bare_optimizer.step();
                                             },
                                             [&] {
                                               backward(stock, stock_optimizer, ids);
                                               torch::nn::utils::clip_grad_norm_(stock->parameters(), 1.0);
                                               stock_optimizer.step();
                                             },
                                             [&] { with_average.update(ids); },
                                             [&] {
                                               backward(hand_averaged, hand_averaged_optimizer, ids);
                                               hand_averaged_optimizer.step();
                                               at::NoGradGuard no_grad;
                                               auto const parameters = hand_averaged->parameters();
                                               for (std::size_t i = 0; i < averages.size(); ++i)
                                                 averages[i].lerp_(parameters[i], 1e-3);
                                             }};
    // Each of them follows each other one equally often: what one frees, the next one gets warm.
    for (int i = 0; i < 5; ++i) {
      int const which = (i * (1 + std::abs(round) % 4) + round + 10) % 5;
      double const taken = keel_benchmark::milliseconds(updates[which]);
      if (round >= 0) times[which].push_back(taken);
    }
  }
  std::fclose(nowhere);

  std::int64_t parameters = 0;
  for (auto const& one : bare->parameters()) parameters += one.numel();
  std::string const detail = "median of " + std::to_string(rounds) + ", " + std::to_string(parameters) + " parameters, " +
                             std::to_string(rows) + " rows, " + std::to_string(threads) +
                             " threads; peer: a hand-written loop with ";
  std::string const label = threads == 1 ? "" : "/" + std::to_string(threads) + "_threads";
  double const ours = keel_benchmark::median(times[0]);
  keel_benchmark::print_row("step_overhead/gpt" + label, ours, keel_benchmark::median(times[1]),
                            detail + "the same update engine and nothing else");
  keel_benchmark::print_row("step_vs_stock/gpt" + label, ours, keel_benchmark::median(times[2]),
                            detail + "clip_grad_norm_ and torch::optim::AdamW");
  keel_benchmark::print_row("step_overhead/gpt_average" + label, keel_benchmark::median(times[3]),
                            keel_benchmark::median(times[4]), detail + "the same update engine and a moving average");
}

}  // namespace

int main() {
  for (int threads : {1, 2}) compare(threads);
}
