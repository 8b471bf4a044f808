// The memory of shard::zero<1|2|3>, as LibTorch allocates it, over what the stages promise:
//     zero/memory   parameters, gradients and AdamW's state on a rank between two micro-batches, over the formula: of P bytes of parameters
//                   in float32 on N ranks 2P + 2P/N with zero<1>, P + 3P/N with zero<2>, 4P/N with zero<3>
//     zero/peak     the peak of an update over the same and, with zero<3>, one unit; activations are small
// Smaller is better; the worst of 1, 2 and 4 ranks and of the three stages. The ranks are threads of this process, of which one runs at a
// time, so the peak is that of the sum of all. One JSON row a line.
#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cstdio>
#include <keel/collective/collectives.hpp>
#include <keel/collective/in_process.hpp>
#include <keel/keel.hpp>
#include <keel/memory/budget.hpp>
#include <keel/recompute/unit.hpp>
#include <string>

namespace {

template <int Stage>
struct recipe : keel::recipe<keel::shard::zero<Stage>, keel::accumulate<2>, keel::clip::global_norm<1.0>, keel::nonfinite::skip<5>> {};

constexpr int units = 128;
constexpr std::int64_t width = 256;
constexpr double unit_bytes = (width * width + width) * 4.0;
constexpr double parameter_bytes = units * unit_bytes;

struct memory_of_rank {
  double held, peak;  ///< bytes, the mean over the ranks
};

template <int Stage>
memory_of_rank measure(int ranks) {
  memory_of_rank found{};
  keel::memory::budget budget;
  std::int64_t const before = budget.allocated();
  keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
    torch::nn::Sequential model;
    for (int i = 0; i < units; ++i) model->push_back(torch::nn::Linear(width, width));
    keel::adamw optimizer(model->parameters(), 1e-3);
    keel::step<recipe<Stage>> step{*model, optimizer, world};
    auto const loss_of = [&] {
      at::Tensor x = at::ones({1, width});
      for (std::size_t i = 0; i < model->size(); ++i) x = keel::unit(model->ptr<torch::nn::LinearImpl>(i), x);
      return x.square().mean();
    };
    // One rank runs at a time: behind the first barrier all are at the same place, and before the second one none goes on.
    auto const at_same_place = [&](auto const& look) {
      keel::barrier(world);
      if (world.rank() == 0) look();
      keel::barrier(world);
    };
    for (int update = 0; update < 3; ++update) step(loss_of), step(loss_of);
    step(loss_of);
    at_same_place([&] { found.held = static_cast<double>(budget.allocated() - before) / ranks; });
    step(loss_of);
    at_same_place([&] { budget.reset_peak(); });
    step(loss_of), step(loss_of);
    at_same_place([&] { found.peak = static_cast<double>(budget.peak() - before) / ranks; });
  });
  return found;
}

/// Parameters, gradients and two moments of each parameter.
double formula(int stage, int ranks) {
  double const share = parameter_bytes / ranks;
  return (stage >= 3 ? share : parameter_bytes) + (stage >= 2 ? share : parameter_bytes) + 2.0 * share;
}

struct worst_ratio {
  double ours = 0.0, promised = 1.0;
  std::string all = {};
  void add(std::string const& name, double bytes, double of_formula) {
    if (bytes / of_formula > ours / promised) ours = bytes, promised = of_formula;
    char text[64];
    std::snprintf(text, sizeof text, "%s%s %.3f", all.empty() ? "" : ", ", name.c_str(), bytes / of_formula);
    all += text;
  }
  void print(char const* name, char const* what) const {
    std::printf("{\"name\": \"%s\", \"ours\": %.3f, \"peer\": %.3f, \"ratio\": %.5f, \"unit\": \"MiB\", \"detail\": \"ratio is ours / peer, smaller is "
                "better: %s; %s\"}\n",
                name, ours / 1048576.0, promised / 1048576.0, ours / promised, what, all.c_str());
  }
};

}  // namespace

int main() {
  at::set_num_threads(1);
  at::manual_seed(1);
  worst_ratio memory, peak;
  auto const add = [&]<int Stage>(std::integral_constant<int, Stage>) {
    for (int const ranks : {1, 2, 4}) {
      std::string const name = "zero<" + std::to_string(Stage) + "> on " + std::to_string(ranks);
      memory_of_rank const found = measure<Stage>(ranks);
      memory.add(name, found.held, formula(Stage, ranks));
      peak.add(name, found.peak, formula(Stage, ranks) + (Stage >= 3 ? unit_bytes : 0.0));
    }
  };
  add(std::integral_constant<int, 1>{});
  add(std::integral_constant<int, 2>{});
  add(std::integral_constant<int, 3>{});
  memory.print("zero/memory", "parameters, gradients and AdamW's state of a rank between two micro-batches; 128 units, 34 MB");
  peak.print("zero/peak", "the peak of an update, and with zero<3> one unit in the formula");
  return 0;
}
