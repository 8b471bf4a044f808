// What a budget costs, and what offloading saves. Prints one JSON row a line.
//   budget/alloc    making and dropping tensors of 64 bytes to 1 MiB, by LibTorch's own allocator and by a budget's, turn by turn.
//   offload/peak    the most bytes of an optimizer's state that are in memory during an update, in it and in a file.
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <keel/memory/budget.hpp>
#include <keel/offload/mapped_memory.hpp>
#include <keel/optimizer/adam.hpp>
#include <string>
#include <thread>
#include <vector>

#include "measure.hpp"

namespace {

/// A mix of what a step allocates: small ones mostly.
void make_and_drop(c10::Allocator& allocator) {
  static constexpr std::size_t sizes[] = {64, 64, 256, 1024, 64, 4096, 512, 65536, 64, 1048576};
  for (int round = 0; round < 400; ++round) {
    c10::DataPtr held[10];
    for (int i = 0; i < 10; ++i) {
      held[i] = allocator.allocate(sizes[i]);
      *static_cast<char*>(held[i].get()) = 1;
    }
  }
}

void compare_allocators() {
  // Both live for good; installed is the one that LibTorch asks.
  c10::Allocator& plain = *c10::GetDefaultCPUAllocator();
  keel::memory::budget budget(std::int64_t{1} << 40);
  c10::Allocator& counting = *c10::GetCPUAllocator();
  constexpr int rounds = 301;
  auto const [ours, theirs] =
      keel_benchmark::compare([&] { make_and_drop(counting); }, [&] { make_and_drop(plain); }, rounds, 5);
  keel_benchmark::print_row("budget/alloc", ours, theirs,
                            "4000 allocations of 64 bytes to 1 MiB, made and dropped, median of " + std::to_string(rounds) +
                                "; peer: LibTorch's default allocator");
}

void offload() {
  at::set_num_threads(1);
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 40; ++i) parameters.push_back(at::zeros({512, 512}).requires_grad_());
  keel::adamw optimizer(parameters, 1e-3);
  for (at::Tensor& one : parameters) one.mutable_grad() = at::ones_like(one);
  auto const home = std::make_shared<keel::memory::mapped_memory>();
  optimizer.move_state_to(home);
  optimizer.step();
  auto const all = home->bytes();

  // Watched from beside: what is resident at most while updates run.
  std::int64_t most = 0;
  std::atomic<bool> done{false};
  std::thread watcher([&] {
    while (!done) most = std::max(most, home->resident());
  });
  double const with = keel_benchmark::milliseconds([&] {
    for (int i = 0; i < 5; ++i) optimizer.step();
  });
  done = true;
  watcher.join();
  auto const stays = home->resident();
  optimizer.move_state_to(nullptr);
  optimizer.step();
  double const without = keel_benchmark::milliseconds([&] {
    for (int i = 0; i < 5; ++i) optimizer.step();
  });
  double const mib = 1024.0 * 1024.0;
  keel_benchmark::print_row("offload/peak", static_cast<double>(most) / mib, static_cast<double>(all) / mib,
                            "MiB of AdamW's moments of 10.5M parameters in memory at most during five updates, the system's "
                            "cache of the files included; " +
                                std::to_string(static_cast<double>(stays) / mib) + " between updates; an update takes " +
                                std::to_string(with / 5) + " ms, in memory " + std::to_string(without / 5) + "; peer: in memory",
                            "MiB");
}

}  // namespace

int main() {
  compare_allocators();
  offload();
}
