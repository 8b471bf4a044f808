// ZeRO-3: each rank has a shard of the parameters, the gradients and the optimizer state, and gathers one block at a time. The recipe
// survives a NaN, memory that runs out on one rank, and SIGKILL of one rank:
//     examples/run zero3 --ranks 2
//     examples/run zero3 --ranks 2 --faults
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <keel/collective/exit_code.hpp>
#include <keel/collective/join.hpp>
#include <keel/keel.hpp>
#include <string>
#include <vector>

#include "char_gpt/model.hpp"
#include "char_gpt/text.hpp"

using namespace keel::literals;

// [recipe
struct sharded : keel::recipe<
    keel::shard::zero<3>,
    keel::recompute::reentrant,
    keel::precision::bf16,
    keel::accumulate<2>,
    keel::clip::global_norm<1.0>,
    keel::nonfinite::rollback<1>,
    keel::schedule::cosine<keel::schedule::warmup<10_steps>>,
    keel::checkpoint::every<20_steps, keel::checkpoint::keep<2>>,
    keel::determinism::seeded<1>,
    keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::offload_optimizer, keel::oom::give_up>> {};
// recipe]

namespace {

constexpr std::int64_t rows = 4;  // of a micro-batch on a rank
// Small: many CPUs multiply bf16 slowly.
constexpr std::int64_t context = 32, width = 64, layers = 3;

struct settings {
  std::string text = char_gpt::licenses, run_directory = "runs/zero3";
  std::int64_t updates = 100;
  bool faults = false;
};

int train(settings const& arguments) {
  keel::world_of_ranks const world = keel::join();
  at::set_num_threads(1);
  std::string const text = char_gpt::read_corpus(arguments.text);
  char_gpt::vocabulary const letters(text);
  at::Tensor const tokens = letters.encode(text);

  keel::seed<sharded>();
  char_gpt::gpt model(char_gpt::model_size{.vocabulary = letters.size(), .context = context, .width = width, .layers = layers});  // its blocks are units
  keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(2e-3));
  keel::trainer<sharded> run{model, optimizer, world, {.run_directory = arguments.run_directory, .updates = arguments.updates, .console_every = 10}};

  // Faults, on the last rank: a NaN in update 31, too little memory in update 51, and SIGKILL after update 71.
  keel::memory::budget budget;
  bool const is_last = world.rank() + 1 == world.size();
  bool has_resumed = false, has_rolled_back = false;
  std::int64_t needed = 0;
  if (arguments.faults && is_last) {
    run.on([&](keel::event::run_begin const& e) { has_resumed = e.resumed; });
    run.on([&](keel::event::update_begin const& e) {
      budget.reset_peak();
      if (e.update == 50 && !has_resumed) budget.limit(budget.allocated() + needed * 8 / 10);
    });
    run.on([&](keel::event::update_end const& e) {
      budget.limit(0);
      needed = std::max(needed, budget.peak() - budget.allocated());
      if (e.update == 71 && !has_resumed) std::raise(SIGKILL);
    });
  }

  // Windows of the text, other ones on each rank and the same after a restart.
  auto const windows = [&](std::int64_t epoch) {
    at::Tensor const starts = [&] {
      auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(100 * epoch + world.rank()));
      return at::randint(tokens.numel() - context - 1, {2 * arguments.updates + 100, rows}, generator, at::kLong);
    }();
    std::vector<at::Tensor> batches;
    for (std::int64_t i = 0; i < starts.size(0); ++i) {
      std::vector<at::Tensor> some;
      for (std::int64_t row = 0; row < rows; ++row) some.push_back(tokens.narrow(0, starts[i][row].item<std::int64_t>(), context + 1));
      batches.push_back(at::stack(some));
    }
    return batches;
  };
  auto const loss_of = [&](at::Tensor const& ids) {
    at::Tensor const logits = model->forward(ids.slice(1, 0, context)).flatten(0, 1);
    at::Tensor const loss = at::cross_entropy_loss(logits, ids.slice(1, 1, context + 1).flatten());
    bool const is_poisoned = arguments.faults && is_last && run.updates() == 30 && !std::exchange(has_rolled_back, true);
    return is_poisoned ? loss * NAN : loss;
  };

  return keel::exit_code_of(run.fit(windows, loss_of));
}

}  // namespace

int main(int count, char** words) {
  CLI::App app("Trains a transformer whose parameters are sharded over the ranks.");
  settings arguments;
  app.add_option("--text", arguments.text, "a file, or a folder whose files are read")->capture_default_str();
  app.add_option("--run-directory", arguments.run_directory, "an existing run is resumed")->capture_default_str();
  app.add_option("--updates", arguments.updates, "length of the run")->check(CLI::Range(1, 1000000))->capture_default_str();
  app.add_flag("--faults", arguments.faults, "a NaN, too little memory and SIGKILL on the last rank");
  CLI11_PARSE(app, count, words);
  return keel::exit_code_of([&] { return train(arguments); });
}
