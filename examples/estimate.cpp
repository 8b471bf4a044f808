// What an update would take, asked before there is one.
#include <cstdio>

#include "char_gpt/model.hpp"

// [estimate]
#include <keel/keel.hpp>

struct plain : keel::recipe<keel::accumulate<2>> {};
struct frugal : keel::recipe<keel::accumulate<2>, keel::recompute::non_reentrant, keel::offload::optimizer> {};

int main() {
  char_gpt::gpt model(char_gpt::model_size{.vocabulary = 96});
  at::Tensor const batch = at::randint(96, {64, 64});
  auto const all = keel::memory::estimate<plain>(model, batch);   // or with loss_of as third
  std::puts(all.describe().c_str());
  auto const less = keel::memory::estimate<frugal>(model, batch);
  std::printf("with recompute and offloading %.0f %% of it\n", 100.0 * static_cast<double>(less.peak()) / static_cast<double>(all.peak()));
  return less.peak() < all.peak() / 2 ? 0 : 1;
}
// [estimate]
