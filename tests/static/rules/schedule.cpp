// L: the learning-rate schedule.
#include "example.hpp"

namespace judged {

using namespace keel::literals;
namespace schedule = keel::schedule;
using keel::steps;
using schedule::constant_with;
using schedule::cosine;
using schedule::decay;
using schedule::linear;
using schedule::lowered_by;
using schedule::min_lr;
using schedule::min_ratio;
using schedule::one_cycle;
using schedule::patience;
using schedule::plateau;
using schedule::start_ratio;
using schedule::threshold;
using schedule::total;
using schedule::warmup;
using schedule::warmup_ratio;
using schedule::warmup_stable_decay;

namespace {

/// A schedule of one's own reads what it likes.
template <class Policy>
struct own : keel::fills<keel::slot::schedule> {
  static constexpr schedule::settings configured = [] {
    schedule::settings changed = Policy::configured;
    changed.kind = schedule::kind::custom;
    return changed;
  }();
};

template <class Policy>
constexpr config over(long long updates) {
  return in_run(of<Policy>, {.updates = updates});
}

}  // namespace

template <>
struct example<rule::L01>
    : recipes<recipe<cosine<warmup<10_steps>, warmup_ratio<0.1>>>, recipe<cosine<warmup<10_steps>, warmup_ratio<0.0>>>> {};
static_assert(keeps(of<cosine<warmup_ratio<0.1>>>));

template <>
struct example<rule::L02>
    : recipes<recipe<cosine<warmup<100_steps>, total<100_steps>>>, recipe<cosine<warmup<99_steps>, total<100_steps>>>> {};
static_assert(keeps(of<cosine<warmup<100_steps>>>));
static_assert(breaks<rule::L02>(of<warmup_stable_decay<warmup<40_steps>, decay<60_steps>, total<100_steps>>>) &&
              keeps(of<warmup_stable_decay<warmup<40_steps>, decay<59_steps>, total<100_steps>>>));
static_assert(breaks<rule::L02>(of<warmup_stable_decay<warmup_ratio<0.25>, decay<75_steps>, total<100_steps>>>) &&
              keeps(of<warmup_stable_decay<warmup_ratio<0.25>, decay<74_steps>, total<100_steps>>>));
static_assert(breaks<rule::L02>(of<constant_with<warmup<100_steps>, total<100_steps>>>));
// The length of the run counts where the schedule says none.
static_assert(breaks<rule::L02>(over<cosine<warmup<100_steps>>>(100)) && keeps(over<cosine<warmup<100_steps>>>(101)));
static_assert(keeps(over<cosine<warmup<60_steps>, total<100_steps>>>(50)));
static_assert(breaks<rule::L02>(over<cosine<warmup<1_steps>, total<1_steps>, min_ratio<0.1>>>(50)));
static_assert(breaks<rule::L02>(over<warmup_stable_decay<warmup_ratio<0.25>, decay<75_steps>>>(100)) &&
              keeps(over<warmup_stable_decay<warmup_ratio<0.25>, decay<74_steps>>>(100)));
static_assert(breaks<rule::L02>(of<cosine<warmup<steps{-1}>>>) && breaks<rule::L02>(of<cosine<total<steps{-1}>>>));
static_assert(breaks<rule::L02>(of<warmup_stable_decay<decay<steps{-1}>>>));

template <>
struct example<rule::L03> : recipes<recipe<cosine<min_ratio<above(1.0)>>>, recipe<cosine<min_ratio<1.0>>>> {};
static_assert(breaks<rule::L03>(of<cosine<min_ratio<-0.1>>>) && breaks<rule::L03>(of<cosine<min_ratio<nan>>>));
static_assert(breaks<rule::L03>(of<cosine<warmup_ratio<1.0>>>) && keeps(of<cosine<warmup_ratio<below(1.0)>>>));
static_assert(breaks<rule::L03>(of<cosine<warmup_ratio<-0.1>>>) && breaks<rule::L03>(of<cosine<warmup_ratio<nan>>>));
static_assert(breaks<rule::L03>(of<cosine<min_lr<-1e-4>>>) && breaks<rule::L03>(of<cosine<min_lr<nan>>>));
// Against the learning rate, where it is known.
constexpr config ending_at_1e_4_from(double learning_rate) {
  return in_run(of<cosine<min_lr<1e-4>>>, {.updates = 1000, .learning_rate = learning_rate});
}
static_assert(keeps(ending_at_1e_4_from(1e-4)) && breaks<rule::L03>(ending_at_1e_4_from(below(1e-4))));
static_assert(keeps(of<cosine<min_lr<1e-4>>>));
static_assert(keeps(over<cosine<>>(1000)));

template <>
struct example<rule::L04> {
  static constexpr verdict broken = check(over<cosine<>>(0));
  static constexpr verdict kept = check(over<cosine<>>(1));
};
static_assert(breaks<rule::L04>(over<linear<>>(0)) && breaks<rule::L04>(over<warmup_stable_decay<decay<10_steps>>>(0)));
static_assert(keeps(over<cosine<total<10_steps>>>(0)));
static_assert(keeps(over<schedule::constant>(0)) && keeps(over<constant_with<warmup<10_steps>>>(0)));
static_assert(breaks<rule::L04>(over<constant_with<warmup_ratio<0.1>>>(0)));
static_assert(keeps(over<own<schedule::constant>>(0)) && breaks<rule::L04>(over<own<cosine<warmup_ratio<0.1>>>>(0)));
static_assert(keeps(of<cosine<>>));

template <>
struct example<rule::L11> : recipes<recipe<cosine<decay<10_steps>>>, recipe<warmup_stable_decay<decay<10_steps>>>> {};
static_assert(breaks<rule::L11>(of<constant_with<decay<10_steps>>>) && breaks<rule::L11>(of<linear<decay<10_steps>>>));
static_assert(keeps(of<own<cosine<decay<10_steps>>>>));
static_assert(keeps(of<cosine<>>));

template <>
struct example<rule::L12> : recipes<recipe<constant_with<min_ratio<0.1>>>, recipe<linear<min_ratio<0.1>>>> {};
static_assert(breaks<rule::L12>(of<constant_with<min_lr<1e-5>>>) && keeps(of<linear<min_lr<1e-5>>>));
static_assert(keeps(of<own<constant_with<min_ratio<0.1>>>>));

template <>
struct example<rule::L13> : recipes<recipe<warmup_stable_decay<decay<0_steps>>>, recipe<warmup_stable_decay<decay<1_steps>>>> {
};
static_assert(breaks<rule::L13>(of<warmup_stable_decay<>>));
static_assert(keeps(of<own<warmup_stable_decay<>>>));

template <>
struct example<rule::L14> {
  static constexpr verdict broken = check(over<cosine<total<100_steps>>>(101));
  static constexpr verdict kept = check(over<cosine<total<100_steps>>>(100));
};
static_assert(breaks<rule::L14>(over<linear<total<100_steps>>>(101)) &&
              breaks<rule::L14>(over<warmup_stable_decay<decay<10_steps>, total<100_steps>>>(101)));
static_assert(keeps(over<cosine<total<100_steps>, min_ratio<0.1>>>(101)));
static_assert(keeps(in_run(of<cosine<total<100_steps>, min_lr<1e-5>>>, {.updates = 101, .learning_rate = 1e-4})));
static_assert(keeps(over<constant_with<total<100_steps>>>(101)) && keeps(over<own<cosine<total<100_steps>>>>(101)));
static_assert(keeps(over<cosine<>>(101)) && breaks<rule::L14>(over<cosine<total<1_steps>>>(2)));
static_assert(breaks<rule::L02>(over<cosine<total<steps{-1}>>>(101)));
static_assert(keeps({.schedule = cosine<total<100_steps>>::configured, .run = {.updates = 101}}));

template <>
struct example<rule::L15> : recipes<recipe<cosine<min_ratio<0.1>, min_lr<1e-5>>>, recipe<cosine<min_ratio<0.1>>>> {};
static_assert(keeps(of<cosine<min_lr<1e-5>>>) && keeps(of<cosine<>>));
static_assert(keeps(of<cosine<min_ratio<0.0>, min_lr<1e-5>>>) && keeps(of<cosine<min_ratio<0.1>, min_lr<0.0>>>));
static_assert(breaks<rule::L15>(of<cosine<min_ratio<1e-300>, min_lr<1e-300>>>));
static_assert(breaks<rule::L15>(of<own<cosine<min_ratio<0.1>, min_lr<1e-5>>>>));
// A number below nothing is L03's alone.
static_assert(breaks<rule::L03>(of<cosine<min_ratio<-0.1>, min_lr<1e-5>>>) &&
              breaks<rule::L03>(of<cosine<min_ratio<0.1>, min_lr<-1e-5>>>));

template <>
struct example<rule::L16> : recipes<recipe<cosine<start_ratio<0.1>>>, recipe<one_cycle<start_ratio<0.1>>>> {};
static_assert(breaks<rule::L16>(of<linear<patience<10_steps>>>) && keeps(of<plateau<patience<10_steps>>>));
static_assert(breaks<rule::L16>(of<cosine<lowered_by<0.5>>>) && keeps(of<plateau<lowered_by<0.5>>>));
static_assert(breaks<rule::L16>(of<one_cycle<threshold<0.01>>>) && keeps(of<plateau<threshold<0.01>>>));
static_assert(breaks<rule::L16>(of<plateau<start_ratio<0.1>>>) && breaks<rule::L16>(of<one_cycle<patience<10_steps>>>));
static_assert(keeps(of<own<cosine<start_ratio<0.1>>>>) && keeps(of<own<cosine<patience<10_steps>>>>));
static_assert(keeps(of<own<cosine<threshold<0.1>>>>) && keeps(of<cosine<start_ratio<0.0>>>));

template <>
struct example<rule::L17> : recipes<recipe<plateau<patience<0_steps>>>, recipe<plateau<patience<1_steps>>>> {};
static_assert(breaks<rule::L17>(of<plateau<lowered_by<0.0>>>) && keeps(of<plateau<lowered_by<above(0.0)>>>));
static_assert(breaks<rule::L17>(of<plateau<lowered_by<1.0>>>) && keeps(of<plateau<lowered_by<below(1.0)>>>));
static_assert(breaks<rule::L17>(of<plateau<threshold<-0.1>>>) && breaks<rule::L17>(of<plateau<threshold<1.0>>>));
static_assert(keeps(of<plateau<threshold<below(1.0)>>>) && breaks<rule::L17>(of<plateau<lowered_by<nan>>>));
static_assert(breaks<rule::L17>(of<plateau<threshold<nan>>>));
static_assert(keeps(of<own<plateau<patience<0_steps>>>>));

// What falls to its end, and what needs to know where that is.
static_assert(breaks<rule::L03>(of<one_cycle<start_ratio<above(1.0)>>>) && keeps(of<one_cycle<start_ratio<1.0>>>));
static_assert(breaks<rule::L03>(of<one_cycle<start_ratio<-0.1>>>) && breaks<rule::L03>(of<one_cycle<start_ratio<nan>>>));
static_assert(breaks<rule::L04>(over<one_cycle<>>(0)) && keeps(over<plateau<>>(0)));
static_assert(breaks<rule::L04>(over<plateau<warmup_ratio<0.1>>>(0)));
static_assert(breaks<rule::L14>(over<one_cycle<total<100_steps>>>(101)) && keeps(over<plateau<total<100_steps>>>(101)));
static_assert(breaks<rule::L11>(of<one_cycle<decay<10_steps>>>) && breaks<rule::L11>(of<plateau<decay<10_steps>>>));
// The warm-up of one_cycle is there without being asked for.
static_assert(schedule::warmup_of(one_cycle<>::configured, 100) == 30.0);
static_assert(schedule::warmup_of(one_cycle<warmup<10_steps>>::configured, 100) == 10.0);
static_assert(schedule::warmup_of(one_cycle<warmup_ratio<0.5>>::configured, 100) == 50.0);
static_assert(schedule::warmup_of(cosine<>::configured, 100) == 0.0);
static_assert(keeps(of<plateau<min_ratio<0.1>>>) && keeps(of<plateau<min_lr<1e-5>>>));

template struct each_shown<rule::schedule_rules>;

}  // namespace judged
