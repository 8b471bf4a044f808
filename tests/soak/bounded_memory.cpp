// bounded_memory DIRECTORY UPDATES: a run that records every update, its layers and histograms, with sinks, alarms, evaluations,
// profiles, saves, a guard of batches, and a batch with NaN now and then. What it holds after all updates is what it held after half of
// them, apart from 512 KiB for the sinks' queues: of 12,000 updates a leak of 90 bytes in each is found, of 300,000 one of 4.
#include <malloc.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <keel/keel.hpp>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace keel::literals;

struct observed : keel::recipe<keel::clip::global_norm<1.0>, keel::nonfinite::skip<1000000>, keel::spike::skip<>, keel::checkpoint::every<2000_steps, keel::checkpoint::keep<2>>,
                               keel::evaluation::every<50_steps>, keel::batch_guard::on,
                               keel::health::watch<keel::health::sft, keel::health::slows_down, keel::health::memory_grows>,
                               keel::profile::every<1000_steps>> {};

struct counting_sink : keel::metric_sink {
  void scalars(std::int64_t, std::span<keel::named_value const> values) override { count += values.size(); }
  std::size_t count = 0;
};

/// Bytes that the program has from malloc. There is one arena, so that none is forgotten.
std::size_t held() {
  ::malloc_trim(0);
  return ::mallinfo2().uordblks + ::mallinfo2().hblkhd;
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) {
    std::fprintf(stderr, "usage: %s DIRECTORY UPDATES\n", words[0]);
    return 2;
  }
  ::mallopt(M_ARENA_MAX, 1);
  at::set_num_threads(1);
  at::manual_seed(1);
  std::filesystem::path const directory = words[1];
  std::int64_t const updates = std::atoll(words[2]);
  std::filesystem::remove_all(directory);
  torch::nn::Linear model(4, 1);
  keel::sgd optimizer(model->parameters(), torch::optim::SGDOptions(1e-3));
  keel::trainer<observed> run{model,
                              optimizer,
                              {.run_directory = directory,
                               .updates = updates,
                               .console = nullptr,
                               .layers_every = 1,
                               .histograms_every = 10,
                               .sinks = {std::make_shared<counting_sink>()}}};
  using pair = std::pair<at::Tensor, at::Tensor>;
  auto const batch_of = [](std::int64_t number) -> pair {
    at::Tensor const x = at::randn({4, 4});
    return {number % 97 == 0 ? x * NAN : x, x.sum(1, true)};
  };
  auto const loss_of = [&](pair const& batch) { return at::mse_loss(model->forward(batch.first), batch.second); };
  run.evaluate_on(std::vector<pair>{batch_of(1), batch_of(2)}, loss_of);
  std::size_t half = 0;
  for (std::int64_t number = 1; run.updates() < updates; ++number) {
    run.step(batch_of(number), loss_of);
    if (half == 0 && run.updates() >= updates / 2) half = held();
  }
  run.finish();
  std::size_t const whole = held();
  std::printf("%lld updates: %zu bytes after half of them, %zu after all\n", static_cast<long long>(updates), half, whole);
  // Queues of sinks may be fuller at one moment than at the other.
  constexpr std::size_t of_queues = 512 << 10;
  if (whole > half + of_queues) {
    std::fprintf(stderr, "memory grows by %zu bytes in %lld updates\n", whole - half, static_cast<long long>(updates - updates / 2));
    return 1;
  }
}
