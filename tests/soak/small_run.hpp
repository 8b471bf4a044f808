// A run that is killed: small, with everything in it that a resume could forget.
#pragma once

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <keel/data/shuffled_batches.hpp>
#include <keel/keel.hpp>
#include <utility>

namespace soak {

using namespace keel::literals;

/// Claims fp16 kernels and computes in fp32, so that there is a loss scale to forget on any machine.
struct environment : keel::environment {
  bool computes_in_half(at::DeviceType) const override { return true; }
  bool computes_in_bfloat16(at::DeviceType) const override { return true; }
  keel::precision::kind autocast(keel::precision::kind) const override { return keel::precision::kind::fp32; }
  /// One for all, so that two runs can be compared to the byte.
  std::string new_run_id() const override { return "soak"; }
};

template <class Saves, class Nonfinite>
struct recipe_of
    : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<keel::loss_scale::initial<1024.0>, keel::loss_scale::growth_interval<7>>,
                   keel::accept<"O10">, keel::accumulate<2>, keel::clip::global_norm<0.5>, Nonfinite, keel::determinism::seeded<3>,
                   keel::spike::skip<keel::spike::zscore<20.0>, keel::spike::window<16>>,
                   keel::schedule::cosine<keel::schedule::warmup<10_steps>>, keel::ema<0.9>, Saves,
                   keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};

struct net : torch::nn::Module {
  net()
      : first(register_module("first", torch::nn::Linear(16, 32))),
        norm(register_module("norm", torch::nn::BatchNorm1d(32))),
        drop(register_module("drop", torch::nn::Dropout(0.2))),
        second(register_module("second", torch::nn::Linear(32, 1))) {}
  at::Tensor forward(at::Tensor const& x) { return second(drop(at::relu(norm(first(x))))); }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout drop;
  torch::nn::Linear second;
};

/// Which rows were trained on, in their order: a sum that every one of them changes for good.
struct rows_seen {
  std::int64_t count = 0;
  std::int64_t mixed = 0;
  void add(keel::row_numbers const& rows) {
    for (std::int64_t const row : rows) {
      ++count;
      mixed = static_cast<std::int64_t>(keel::permutation::mixed(static_cast<std::uint64_t>(mixed ^ row)) >> 2);
    }
  }
  void visit(auto& archive) {
    archive("count", count);
    archive("mixed", mixed);
  }
};

/// Trains to its end in `directory`; `prepare(run)` hangs on hooks, `each()` is called for every micro-batch.
template <class Saves, class Nonfinite = keel::nonfinite::skip<4>, class Prepare, class Each>
void train(std::filesystem::path const& directory, std::int64_t updates, Prepare const& prepare, Each const& each,
           std::shared_ptr<keel::file_system> files = {}) {
  using recipe = recipe_of<Saves, Nonfinite>;
  char const* const named = std::getenv("KEEL_TEST_DEVICE");
  at::Device const device(named == nullptr ? "cpu" : named);
  keel::seed<recipe>(device.type());
  auto const model = std::make_shared<net>();
  model->to(device);
  torch::optim::AdamW optimizer(model->parameters(), 0.01);
  keel::trainer<recipe, environment> run{model, optimizer,
                                         {.run_directory = directory,
                                          .updates = updates,
                                          .mode = keel::console_mode::off,
                                          .own_files = std::move(files)}};
  rows_seen seen;
  run.register_state("rows_seen", seen);
  prepare(run);
  // Seven batches an epoch, so that windows of two cross epochs; the rows' values drawn from the generator, as a user's might be.
  keel::shuffled_batches const order{{.rows = 56, .batch = 8, .seed = 5}};
  auto const loss_of = [&](keel::row_numbers const& rows) {
    each();
    seen.add(rows);
    at::Tensor const x = at::randn({static_cast<std::int64_t>(rows.size()), 16}, at::TensorOptions().device(device)) + 0.01 * static_cast<double>(rows[0]);
    at::Tensor const loss = at::mse_loss(model->forward(x), x.sum(1, true));
    constexpr bool goes_back = keel::config_of<recipe>.nonfinite.kind == keel::nonfinite::kind::rollback;
    // Where it goes back, a second time from the same place, and so to an older checkpoint than the first.
    bool const bad = goes_back ? run.updates() == 11 && run.rollbacks() < 2 : run.updates() == 12 && run.skipped() == 0;
    if (bad) return loss * NAN;
    return loss;
  };
  run.fit(order, loss_of);
}

}  // namespace soak
