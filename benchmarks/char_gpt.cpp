// The model of examples/char_gpt in training: tokens a second of so many updates, for comparison with char_gpt.py, which trains
// the same one in Python's PyTorch. Prints one number a line, one a round.
//     keel_benchmark_char_gpt UPDATES ROUNDS THREADS
#include <ATen/Parallel.h>
#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <keel/keel.hpp>
#include <vector>

#include "../examples/char_gpt/model.hpp"
#include "measure.hpp"

namespace {

/// As in the example, without what goes to a disk: two micro-batches an update, clipped, AdamW.
struct recipe : keel::recipe<keel::accumulate<2>, keel::clip::global_norm<1.0>, keel::nonfinite::skip<5>> {};

constexpr std::int64_t rows = 8;
constexpr char_gpt::model_size size{.vocabulary = 96};

}  // namespace

int main(int count, char** words) {
  if (count != 4) return 2;
  int const updates = std::atoi(words[1]);
  int const rounds = std::atoi(words[2]);
  at::set_num_threads(std::atoi(words[3]));
  // As the example: activations are allocated and freed thousands of times a second.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  at::manual_seed(1337);
  char_gpt::gpt model(size);
  keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(2e-3).betas({0.9, 0.95}).weight_decay(0.1));
  keel::step<recipe> step{model, optimizer};
  auto const loss_of = [&](at::Tensor const& ids) {
    at::Tensor const logits = model->forward(ids.slice(1, 0, size.context)).flatten(0, 1);
    return at::cross_entropy_loss(logits, ids.slice(1, 1, size.context + 1).reshape({-1}));
  };
  std::vector<at::Tensor> batches;
  for (int i = 0; i < 16; ++i) batches.push_back(at::randint(size.vocabulary, {rows, size.context + 1}));
  std::size_t next = 0;
  auto const run = [&](int of) {
    for (int i = 0; i < 2 * of; ++i) step(batches[next++ % batches.size()], loss_of);
  };
  run(5);
  for (int round = 0; round < rounds; ++round) {
    double const ms = keel_benchmark::milliseconds([&] { run(updates); });
    std::printf("%.1f\n", 2.0 * static_cast<double>(rows * size.context * updates) / ms * 1e3);
    std::fflush(stdout);
  }
}
