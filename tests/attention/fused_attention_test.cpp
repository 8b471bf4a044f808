// What only a LibTorch with a fused kernel can show; elsewhere every case is skipped, and says so.
#include "../every_allocation.hpp"

using namespace keel_test;
namespace oom = keel::oom;

namespace {

struct fused : keel::recipe<keel::accumulate<2>, keel::attention::fused> {};
struct fuses : keel::recipe<keel::accumulate<2>, keel::attention::math, oom::ladder<oom::fused_attention, oom::give_up>, keel::incident::off> {};

bool skipped() {
  if (keel::libtorch::has_fused_attention) return false;
  WARN("SKIPPED: this LibTorch has no fused attention");
  return true;
}

}  // namespace

TEST_CASE(
    "every_allocation_fails_once: fused attention, in the first update, because it rounds otherwise than what came before") {
  if (skipped()) return;
  every_allocation_fails_once<fuses, fused>(0);
}

TEST_CASE(
    "the fused kernel is the math path up to rounding, and holds memory by the length of a sequence and not by its square") {
  if (skipped()) return;
  keel::memory::budget budget;
  keel::libtorch::seed_random(at::kCPU, 2);
  at::Tensor const q = at::randn({1, 2, 512, 16}).requires_grad_();
  auto const run = [&](keel::attention_kind kind) {
    keel::attention_scope const scope(kind);
    auto const before = budget.allocated();
    at::Tensor const y = keel::attention(q, q, q, {.causal = true});
    auto const held = budget.allocated() - before;
    at::Tensor const gradient = torch::autograd::grad({y.sin().sum()}, {q})[0];
    return std::make_tuple(y.detach(), gradient, held);
  };
  auto const [y, gradient, held] = run(keel::attention_kind::fused);
  auto const [expected, reference, held_by_math] = run(keel::attention_kind::math);
  CHECK(at::allclose(y, expected, 1e-4, 1e-5));
  CHECK(at::allclose(gradient, reference, 1e-3, 1e-4));
  CHECK(10 * held < held_by_math);
}
