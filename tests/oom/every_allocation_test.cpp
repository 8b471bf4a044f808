#include "../every_allocation.hpp"

using namespace keel_test;
namespace oom = keel::oom;

namespace {

struct in_four : keel::recipe<keel::accumulate<4>, keel::clip::global_norm<1.0>> {};
struct halves
    : keel::recipe<keel::accumulate<2>, keel::clip::global_norm<1.0>, oom::ladder<oom::halve_micro_batch, oom::give_up>, keel::incident::off> {};

struct recomputing : keel::recipe<keel::accumulate<2>, keel::recompute::non_reentrant> {};
struct recomputes
    : keel::recipe<keel::accumulate<2>, oom::ladder<oom::enable_recompute<keel::recompute::non_reentrant>, oom::give_up>, keel::incident::off> {};

struct offloading : keel::recipe<keel::accumulate<2>, keel::ema<0.9>, keel::offload::optimizer> {};
struct offloads : keel::recipe<keel::accumulate<2>, keel::ema<0.9>, oom::ladder<oom::offload_optimizer, oom::give_up>, keel::incident::off> {};

struct in_two : keel::recipe<keel::accumulate<2>> {};
struct quantizes : keel::recipe<keel::accumulate<2>, keel::model::has<keel::model::adapters>,
                                oom::ladder<oom::quantize_base, oom::give_up>, keel::incident::off> {};
struct shortens : keel::recipe<keel::accumulate<2>, oom::ladder<oom::shorten_sequence<5>, oom::give_up>, keel::incident::off> {};

/// A rung of the test's own, which changes nothing.
struct frees_a_cache {
  static constexpr oom::rung_settings rung{.kind = oom::rung_kind::custom};
  static bool take(torch::nn::Module&) { return true; }
};
struct own : keel::recipe<keel::accumulate<2>, oom::ladder<frees_a_cache, oom::give_up>, keel::incident::off> {};

/// What else allocates: autocast, a clip policy that works by units, an average.
struct busy_in_two : keel::recipe<keel::accumulate<2>, keel::precision::bf16, keel::clip::adaptive<0.02>, keel::ema<0.9>> {};
struct busy : keel::recipe<keel::accumulate<2>, keel::precision::bf16, keel::clip::adaptive<0.02>, keel::ema<0.9>,
                           oom::ladder<frees_a_cache, oom::give_up>, keel::incident::off> {};
struct averaged_in_two : keel::recipe<keel::accumulate<2>, keel::ema<0.9>, keel::accept<"P06">> {};
struct averaged
    : keel::recipe<keel::accumulate<2>, keel::ema<0.9>, keel::accept<"P06">, oom::ladder<frees_a_cache, oom::give_up>, keel::incident::off> {};

}  // namespace

TEST_CASE("every_allocation_fails_once: halving, in the first update and in a later one") {
  every_allocation_fails_once<halves, in_four>(0, beginning::in_halves);
}

TEST_CASE("every_allocation_fails_once: recompute, for AdamW, Adam and SGD, in the first update and in a later one") {
  every_allocation_fails_once<recomputes, recomputing>(0);
  every_allocation_fails_once<recomputes, recomputing>(2);
  every_allocation_fails_once<recomputes, recomputing, keel::adam>(1);
  every_allocation_fails_once<recomputes, recomputing, keel::sgd>(1);
}

TEST_CASE("every_allocation_fails_once: offloading, with a moving average") {
  every_allocation_fails_once<offloads, offloading>(0);
  every_allocation_fails_once<offloads, offloading>(2);
  every_allocation_fails_once<offloads, offloading, keel::sgd>(1);
}

TEST_CASE("every_allocation_fails_once: rungs that change the experiment, in the first update") {
  every_allocation_fails_once<quantizes, in_two>(0, beginning::quantized);
  every_allocation_fails_once<shortens, in_two>(0, beginning::shortened);
}

TEST_CASE("every_allocation_fails_once: a rung of the program's own, with autocast, clipped units, narrow parameters") {
  every_allocation_fails_once<own, in_two>(1);
  every_allocation_fails_once<busy, busy_in_two>(1);
  every_allocation_fails_once<averaged, averaged_in_two>(1, beginning::plain, /*narrow=*/true);
}
