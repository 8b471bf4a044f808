// L: the learning-rate schedule.
#include "example.hpp"

namespace judged {

using namespace keel::literals;
namespace schedule = keel::schedule;
using keel::steps;
using schedule::constant_with;
using schedule::cosine;
using schedule::cycle;
using schedule::cycle_factor;
using schedule::decay;
using schedule::evaluations;
using schedule::exponential;
using schedule::interval;
using schedule::inverse_root;
using schedule::linear;
using schedule::lowered_by;
using schedule::milestones;
using schedule::min_lr;
using schedule::min_ratio;
using schedule::multi_step;
using schedule::one_cycle;
using schedule::patience;
using schedule::plateau;
using schedule::polynomial;
using schedule::power;
using schedule::start_ratio;
using schedule::step_decay;
using schedule::threshold;
using schedule::total;
using schedule::warm_restarts;
using schedule::warmup;
using schedule::warmup_ratio;
using schedule::warmup_stable_decay;

namespace {

/// A custom schedule reads what it likes.
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
static_assert(breaks<rule::L02>(of<warmup_stable_decay<warmup<40_steps>, decay<61_steps>, total<100_steps>>>) &&
              keeps(of<warmup_stable_decay<warmup<40_steps>, decay<60_steps>, total<100_steps>>>));
static_assert(breaks<rule::L02>(of<warmup_stable_decay<warmup_ratio<0.25>, decay<76_steps>, total<100_steps>>>) &&
              keeps(of<warmup_stable_decay<warmup_ratio<0.25>, decay<75_steps>, total<100_steps>>>));
static_assert(breaks<rule::L02, rule::L25>(of<constant_with<warmup<100_steps>, total<100_steps>>>));
// The length of the run counts where the schedule says none.
static_assert(breaks<rule::L02>(over<cosine<warmup<100_steps>>>(100)) && keeps(over<cosine<warmup<100_steps>>>(101)));
static_assert(keeps(over<cosine<warmup<60_steps>, total<100_steps>>>(50)));
static_assert(breaks<rule::L02>(over<cosine<warmup<1_steps>, total<1_steps>, min_ratio<0.1>>>(50)));
static_assert(breaks<rule::L02>(over<warmup_stable_decay<warmup_ratio<0.25>, decay<76_steps>>>(100)) &&
              keeps(over<warmup_stable_decay<warmup_ratio<0.25>, decay<75_steps>>>(100)));
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
static_assert(breaks<rule::L25>(over<constant_with<total<100_steps>>>(101)) && keeps(over<own<cosine<total<100_steps>>>>(101)));
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
static_assert(breaks<rule::L16>(of<warm_restarts<cycle<10_steps>, lowered_by<0.5>>>) &&
              keeps(of<exponential<lowered_by<0.5>>>) && keeps(of<step_decay<interval<10_steps>, lowered_by<0.5>>>) &&
              keeps(of<multi_step<milestones<10_steps>, lowered_by<0.5>>>));
static_assert(breaks<rule::L16>(of<cosine<evaluations<3>>>) &&
              breaks<rule::L16>(of<exponential<lowered_by<0.5>, evaluations<3>>>));
static_assert(breaks<rule::L16>(of<step_decay<interval<10_steps>, patience<10_steps>>>));
static_assert(keeps(of<own<cosine<evaluations<3>>>>) && keeps(of<own<cosine<lowered_by<3.0>>>>));
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
// One patience, in updates or in evaluations.
static_assert(plateau<evaluations<3>>::configured.patience == 0 && plateau<>::configured.evaluations == 0);
using evaluates = keel::evaluation::every<100_steps>;
static_assert(keeps(of<plateau<evaluations<1>>, evaluates>) && breaks<rule::L17>(of<plateau<evaluations<0>>, evaluates>));
static_assert(breaks<rule::L17>(of<plateau<evaluations<-1>>, evaluates>));
static_assert(
    breaks<rule::L17>({.schedule = {.kind = schedule::kind::plateau, .patience = 9, .lowered_by = 0.5, .evaluations = 9},
                       .evaluation = evaluates::configured}));
static_assert(breaks<rule::L17>({.schedule = {
                                     .kind = schedule::kind::plateau, .patience = 9, .lowered_by = 0.5, .evaluations = -1}}));
static_assert(
    breaks<rule::L17>({.schedule = {.kind = schedule::kind::plateau, .patience = -9, .lowered_by = 0.5, .evaluations = 9},
                       .evaluation = evaluates::configured}));
static_assert(breaks<rule::D20>(of<plateau<patience<10_steps>, evaluations<3>>, evaluates>));

template <>
struct example<rule::L18> : recipes<recipe<cosine<power<2.0>>>, recipe<polynomial<power<2.0>>>> {};
static_assert(breaks<rule::L18>(of<cosine<interval<10_steps>>>) && keeps(of<step_decay<interval<10_steps>>>));
static_assert(keeps(of<exponential<lowered_by<0.5>, interval<10_steps>>>));
static_assert(breaks<rule::L18>(of<multi_step<milestones<10_steps>, interval<10_steps>>>));
static_assert(breaks<rule::L18>(of<step_decay<interval<10_steps>, milestones<10_steps>>>) &&
              keeps(of<multi_step<milestones<10_steps>>>));
static_assert(breaks<rule::L18>(of<warm_restarts<cycle<10_steps>, power<2.0>>>));
static_assert(breaks<rule::L18>(of<cosine<cycle<10_steps>>>) && keeps(of<warm_restarts<cycle<10_steps>>>));
static_assert(breaks<rule::L18>(of<cosine<cycle_factor<2>>>) && keeps(of<warm_restarts<cycle<10_steps>, cycle_factor<2>>>));
static_assert(keeps(of<own<cosine<power<2.0>, interval<10_steps>, milestones<10_steps>, cycle<10_steps>>>>));
static_assert(keeps(of<cosine<power<0.0>>>));

template <>
struct example<rule::L19> : recipes<recipe<step_decay<interval<0_steps>>>, recipe<step_decay<interval<1_steps>>>> {};
static_assert(breaks<rule::L19>(of<step_decay<>>) && breaks<rule::L19>(of<exponential<>>));
static_assert(step_decay<>::configured.lowered_by == 0.1 && exponential<>::configured.interval == 1);
static_assert(breaks<rule::L19>(of<step_decay<interval<9_steps>, lowered_by<0.0>>>) &&
              keeps(of<step_decay<interval<9_steps>, lowered_by<above(0.0)>>>));
static_assert(breaks<rule::L19>(of<step_decay<interval<9_steps>, lowered_by<1.0>>>) &&
              keeps(of<step_decay<interval<9_steps>, lowered_by<below(1.0)>>>));
static_assert(breaks<rule::L19>(of<exponential<lowered_by<nan>>>));
static_assert(breaks<rule::L19>(of<exponential<lowered_by<1.0>>>) && keeps(of<exponential<lowered_by<below(1.0)>>>));
static_assert(breaks<rule::L19>(of<exponential<lowered_by<0.5>, interval<0_steps>>>));
static_assert(breaks<rule::L19>(of<multi_step<milestones<9_steps>, lowered_by<1.0>>>) &&
              keeps(of<multi_step<milestones<9_steps>, lowered_by<below(1.0)>>>));
static_assert(breaks<rule::L19>(of<multi_step<milestones<9_steps>, lowered_by<0.0>>>));
static_assert(keeps(of<own<step_decay<>>>) && keeps(of<own<multi_step<milestones<9_steps>, lowered_by<1.0>>>>));

template <>
struct example<rule::L20>
    : recipes<recipe<multi_step<milestones<10_steps, 10_steps>>>, recipe<multi_step<milestones<10_steps, 11_steps>>>> {};
static_assert(breaks<rule::L20>(of<multi_step<>>) && breaks<rule::L20>(of<multi_step<milestones<>>>));
static_assert(breaks<rule::L20>(of<multi_step<milestones<0_steps>>>) && keeps(of<multi_step<milestones<1_steps>>>));
static_assert(breaks<rule::L20>(of<multi_step<milestones<steps{-1}, 5_steps>>>));
static_assert(breaks<rule::L20>(of<multi_step<milestones<10_steps, 30_steps, 20_steps>>>));
static_assert(keeps(of<multi_step<milestones<1_steps, 2_steps, 3_steps, 4_steps, 5_steps, 6_steps, 7_steps, 8_steps>>>));
static_assert(breaks<rule::L20>(
    of<multi_step<milestones<1_steps, 2_steps, 3_steps, 4_steps, 5_steps, 6_steps, 7_steps, 8_steps, 9_steps>>>));
static_assert(breaks<rule::L20>({.schedule = {.kind = schedule::kind::multi_step, .lowered_by = 0.1, .milestone_count = -1}}));
static_assert(breaks<rule::L20>(of<multi_step<milestones<10_steps>, warmup<10_steps>>>) &&
              keeps(of<multi_step<milestones<10_steps>, warmup<9_steps>>>));
static_assert(breaks<rule::L20>(over<multi_step<milestones<10_steps>, warmup_ratio<0.1>>>(100)) &&
              keeps(over<multi_step<milestones<11_steps>, warmup_ratio<0.1>>>(100)));
static_assert(keeps(of<own<multi_step<>>>));
// Lists of other milestones are two values for one thing.
static_assert(breaks<rule::D20>(of<multi_step<milestones<10_steps, 20_steps>, milestones<10_steps>>>) &&
              keeps(of<multi_step<milestones<10_steps>, milestones<10_steps>>>));

template <>
struct example<rule::L21> : recipes<recipe<polynomial<>>, recipe<polynomial<power<above(0.0)>>>> {};
static_assert(breaks<rule::L21>(of<polynomial<power<-1.0>>>) && breaks<rule::L21>(of<polynomial<power<nan>>>));
static_assert(breaks<rule::L21>(of<polynomial<power<1.7e308>>>) && keeps(of<polynomial<power<below(1.7e308)>>>));
static_assert(keeps(of<own<polynomial<>>>));

template <>
struct example<rule::L22> : recipes<recipe<inverse_root<>>, recipe<inverse_root<warmup<1_steps>>>> {};
static_assert(keeps(of<inverse_root<warmup_ratio<0.1>>>) && breaks<rule::L02>(of<inverse_root<warmup<steps{-1}>>>));
static_assert(keeps(of<own<inverse_root<>>>));

template <>
struct example<rule::L23> : recipes<recipe<warm_restarts<cycle<0_steps>>>, recipe<warm_restarts<cycle<1_steps>>>> {};
static_assert(breaks<rule::L23>(of<warm_restarts<>>) && breaks<rule::L23>(of<warm_restarts<cycle<steps{-1}>>>));
static_assert(breaks<rule::L23>(of<warm_restarts<cycle<9_steps>, cycle_factor<0>>>) &&
              keeps(of<warm_restarts<cycle<9_steps>, cycle_factor<1>>>));
static_assert(warm_restarts<>::configured.cycle_factor == 1 && keeps(of<own<warm_restarts<>>>));

template <>
struct example<rule::L24> : recipes<recipe<plateau<evaluations<3>>>, recipe<plateau<evaluations<3>>, evaluates>> {};
static_assert(keeps(of<plateau<>>) && keeps(of<own<plateau<evaluations<3>>>>));
static_assert(keeps(of<plateau<evaluations<3>>, keel::accept<"L24">>));

// What falls to its end, and what needs to know where that is.
static_assert(breaks<rule::L04>(over<polynomial<power<2.0>>>(0)) && keeps(over<polynomial<power<2.0>>>(100)));
static_assert(breaks<rule::L14>(over<polynomial<power<2.0>, total<100_steps>>>(101)));
static_assert(keeps(over<step_decay<interval<10_steps>>>(0)) && keeps(over<multi_step<milestones<10_steps>>>(0)) &&
              keeps(over<exponential<lowered_by<0.5>>>(0)) && keeps(over<inverse_root<warmup<10_steps>>>(0)) &&
              keeps(over<warm_restarts<cycle<10_steps>>>(0)));
static_assert(breaks<rule::L04>(over<inverse_root<warmup_ratio<0.1>>>(0)));
static_assert(breaks<rule::L11>(of<step_decay<interval<10_steps>, decay<10_steps>>>));
static_assert(keeps(of<exponential<lowered_by<0.5>, min_ratio<0.1>>>) &&
              keeps(of<warm_restarts<cycle<9_steps>, min_lr<1e-5>>>));
static_assert(schedule::changes_the_rate(step_decay<>::configured) && schedule::changes_the_rate(warm_restarts<>::configured));
static_assert(breaks<rule::L03>(of<one_cycle<start_ratio<above(1.0)>>>) && keeps(of<one_cycle<start_ratio<1.0>>>));
static_assert(breaks<rule::L03>(of<one_cycle<start_ratio<-0.1>>>) && breaks<rule::L03>(of<one_cycle<start_ratio<nan>>>));
static_assert(breaks<rule::L04>(over<one_cycle<>>(0)) && keeps(over<plateau<>>(0)));
static_assert(breaks<rule::L04>(over<plateau<warmup_ratio<0.1>>>(0)));
static_assert(breaks<rule::L14>(over<one_cycle<total<100_steps>>>(101)) && breaks<rule::L25>(over<plateau<patience<10_steps>, total<100_steps>>>(101)));
static_assert(breaks<rule::L11>(of<one_cycle<decay<10_steps>>>) && breaks<rule::L11>(of<plateau<decay<10_steps>>>));
// The warm-up of one_cycle is there without being asked for.
static_assert(schedule::warmup_of(one_cycle<>::configured, 100) == 30.0);
static_assert(schedule::warmup_of(one_cycle<warmup<10_steps>>::configured, 100) == 10.0);
static_assert(schedule::warmup_of(one_cycle<warmup_ratio<0.5>>::configured, 100) == 50.0);
static_assert(schedule::warmup_of(cosine<>::configured, 100) == 0.0);
static_assert(keeps(of<plateau<min_ratio<0.1>>>) && keeps(of<plateau<min_lr<1e-5>>>));

template <>
struct example<rule::L25> : recipes<recipe<constant_with<warmup<10_steps>, total<100_steps>>>,
                                    recipe<constant_with<warmup_ratio<0.1>, total<100_steps>>>> {};
static_assert(breaks<rule::L25>(of<plateau<total<100_steps>>>) && keeps(of<plateau<warmup_ratio<0.1>, total<100_steps>>>));
static_assert(breaks<rule::L25>(of<step_decay<interval<10_steps>, total<100_steps>>>));
static_assert(keeps(of<own<cosine<total<100_steps>>>>) && keeps(of<linear<total<100_steps>>>));

// What never comes due in a run of a known length.
static_assert(breaks<rule::L17>(over<plateau<patience<100_steps>>>(100)) && keeps(over<plateau<patience<99_steps>>>(100)));
static_assert(breaks<rule::L19>(over<step_decay<lowered_by<0.5>, interval<100_steps>>>(100)) && keeps(over<step_decay<lowered_by<0.5>, interval<99_steps>>>(100)));
static_assert(keeps(over<exponential<lowered_by<0.5>, interval<200_steps>>>(100)));
static_assert(keeps(in_run(of<multi_step<lowered_by<0.5>, milestones<200_steps>>>, {.updates = 100, .is_part = true})));
static_assert(breaks<rule::L20>(over<multi_step<lowered_by<0.5>, milestones<50_steps, 100_steps>>>(100)) &&
              keeps(over<multi_step<lowered_by<0.5>, milestones<50_steps, 99_steps>>>(100)));

template struct each_shown<rule::schedule_rules>;

}  // namespace judged
