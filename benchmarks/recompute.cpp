// What recomputing the blocks of a transformer saves and costs: bytes of activations that are held between the forward and the
// backward pass, and the time of both, with and without, turn by turn in one process. Prints one JSON row a line; where the two
// modes differ, the worse one.
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>

#include <algorithm>
#include <keel/memory/budget.hpp>
#include <string>
#include <vector>

#include "../examples/char_gpt/model.hpp"
#include "measure.hpp"

namespace {

constexpr char_gpt::model_size size{.vocabulary = 96, .context = 64, .width = 128, .heads = 4, .layers = 8, .dropout = 0.1};

struct ground {
  char_gpt::gpt model{size};
  at::Tensor ids = at::randint(size.vocabulary, {8, size.context + 1});

  at::Tensor loss(keel::recompute_kind kind) {
    keel::unit_scope const scope(kind);
    at::Tensor const logits = model->forward(ids.slice(1, 0, size.context));
    return at::cross_entropy_loss(logits.reshape({-1, size.vocabulary}), ids.slice(1, 1, size.context + 1).reshape({-1}));
  }
  void pass(keel::recompute_kind kind) {
    for (at::Tensor const& one : model->parameters()) one.mutable_grad() = at::Tensor();
    loss(kind).backward();
  }
  /// Bytes that a forward pass leaves behind for the backward pass, blocks only: the embedding and the logits are held anyway.
  double held(keel::recompute_kind kind, keel::memory::budget& budget) {
    keel::unit_scope const scope(kind);
    at::Tensor x = at::randn({8, size.context, size.width}).requires_grad_();
    auto const before = budget.allocated();
    for (auto const& one : *model->blocks) {
      x = keel::unit(
          [block = one->as<char_gpt::block_module>()](at::Tensor const& into) { return block->forward(into); },
          x);
    }
    auto const bytes = static_cast<double>(budget.allocated() - before);
    x.sum().backward();
    return bytes;
  }
};

}  // namespace

int main() {
  keel::memory::budget budget;
  at::set_num_threads(1);
  at::manual_seed(1);
  ground on;
  using kind = keel::recompute_kind;
  double const plain = on.held(kind::none, budget);
  double const hooks = on.held(kind::non_reentrant, budget);
  double const reentrant = on.held(kind::reentrant, budget);
  double const mib = 1024.0 * 1024.0;
  keel_benchmark::print_row("recompute/peak", std::max(hooks, reentrant) / mib, plain / mib,
                            "MiB held by 8 blocks, 8 rows of 64 tokens; non_reentrant " + std::to_string(hooks / mib) +
                                ", reentrant " + std::to_string(reentrant / mib) + "; peer: without",
                            "MiB");
  constexpr int rounds = 41;
  std::vector<double> times[3];
  kind const kinds[] = {kind::none, kind::non_reentrant, kind::reentrant};
  for (int round = -3; round < rounds; ++round) {
    for (int i = 0; i < 3; ++i) {
      int const which = (i + round + 3) % 3;
      double const taken = keel_benchmark::milliseconds([&] { on.pass(kinds[which]); });
      if (round >= 0) times[which].push_back(taken);
    }
  }
  double const with_hooks = keel_benchmark::median(times[1]);
  double const with_reentrant = keel_benchmark::median(times[2]);
  keel_benchmark::print_row("recompute/time", std::max(with_hooks, with_reentrant), keel_benchmark::median(times[0]),
                            "forward and backward, median of " + std::to_string(rounds) + ", 1 thread; non_reentrant " +
                                std::to_string(with_hooks) + ", reentrant " + std::to_string(with_reentrant) +
                                "; peer: without");
}
