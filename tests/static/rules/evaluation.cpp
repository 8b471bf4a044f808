// E: evaluation. X: profiler and graph capture. T: packing.
#include "example.hpp"

namespace judged {

using namespace keel::literals;
namespace data = keel::data;
namespace evaluation = keel::evaluation;
namespace model = keel::model;
namespace oom = keel::oom;
namespace profile = keel::profile;
using evaluation::batches;

template <>
struct example<rule::E02> : recipes<recipe<evaluation::every<0_steps>>, recipe<evaluation::every<1_steps>>> {};
static_assert(breaks<rule::E02>(of<evaluation::every<1_steps, batches<-1>>>) &&
              keeps(of<evaluation::every<1_steps, batches<0>>>));
static_assert(breaks<rule::E02>(of<evaluation::every<1_steps, evaluation::early_stop<-1>>>) &&
              keeps(of<evaluation::every<1_steps, evaluation::early_stop<0>>>));
static_assert(keeps(in_run(of<evaluation::every<1_steps>>, {})));
// Training data without an end says nothing of the data of an evaluation.
static_assert(keeps(of<evaluation::every<1_steps>, data::is<data::endless>>));
static_assert(keeps({.evaluation = {.interval = 0, .batches = -1, .early_stop = -1}}));

using evaluation::early_stop;
using one_by_delta = evaluation::every<1_steps, evaluation::min_delta<0.1>, early_stop<2>>;
using evaluation::every;
template <>
struct example<rule::E20>
    : recipes<recipe<every<1_steps, evaluation::averaged>>, recipe<every<1_steps, evaluation::averaged>, keel::ema<0.9>>> {};
static_assert(keeps({.evaluation = {.averaged = true}}));

template <>
struct example<rule::E21>
    : recipes<recipe<every<1_steps, evaluation::min_delta<0.1>>>, recipe<one_by_delta>> {};
static_assert(breaks<rule::E21>(of<every<1_steps, evaluation::not_before<5_steps>>>) &&
              keeps(of<every<1_steps, evaluation::not_before<5_steps>, early_stop<2>>>));
static_assert(breaks<rule::E21>(of<every<1_steps, evaluation::larger_is_better>>) &&
              keeps(of<every<1_steps, evaluation::larger_is_better, evaluation::stop_at<0.9>>>));
static_assert(breaks<rule::E21>(of<every<1_steps, evaluation::monitor<"f1">>>) &&
              keeps(of<every<1_steps, evaluation::monitor<"f1">, evaluation::stop_on_nonfinite>>));
static_assert(keeps({.evaluation = {.min_delta = 0.1, .larger = true}}));
static_assert(breaks<rule::E02>(of<every<1_steps, evaluation::min_delta<-0.1>, early_stop<2>>>));
static_assert(breaks<rule::E02>(
    of<every<1_steps, evaluation::not_before<keel::steps{-1}>, early_stop<2>>>));

using captured = keel::device::cuda_with<keel::device::graph_captured>;
template <>
struct example<rule::X03> : recipes<recipe<captured, data::is<data::ragged>>, recipe<captured, data::usual>> {};
using packed = data::is<data::packed>;
using boundaries = model::has<model::sequence_boundaries>;
static_assert(breaks<rule::X03>(of<captured, packed, boundaries>));
static_assert(keeps(of<packed, boundaries>) && keeps(of<data::is<data::ragged>>));
// A ladder has no place in a captured graph at all (O13), and two of its rungs none for a second reason.
static_assert(breaks<rule::X03, rule::O13>(of<captured, ladder<oom::halve_micro_batch, oom::give_up>>));
static_assert(
    breaks<rule::X03, rule::O13>(of<captured, ladder<oom::offload_optimizer, oom::shorten_sequence<512>, oom::give_up>>));
static_assert(breaks<rule::O13>(of<captured, ladder<oom::offload_optimizer, oom::fused_attention, oom::give_up>>));
static_assert(keeps(of<ladder<oom::halve_micro_batch, oom::shorten_sequence<512>, oom::give_up>>));

template <>
struct example<rule::X07> : recipes<recipe<profile::every<3_steps, profile::warmup<1>, profile::active<3>>>,
                                    recipe<profile::every<4_steps, profile::warmup<1>, profile::active<3>>>> {};
static_assert(breaks<rule::X07>(of<profile::every<4_steps, profile::warmup<2>>>));
static_assert(breaks<rule::X07>(of<profile::every<4_steps, profile::active<4>>>));
static_assert(breaks<rule::X07>(of<profile::every<4_steps, profile::active<0>>>) &&
              keeps(of<profile::every<4_steps, profile::active<1>>>));
static_assert(breaks<rule::X07>(of<profile::every<4_steps, profile::warmup<-1>>>) &&
              keeps(of<profile::every<4_steps, profile::warmup<0>>>));
static_assert(keeps({.profile = {.period = 0, .warmup = -1, .active = 0}}));
static_assert(breaks<rule::X07>({.profile = {profile::kind::every, 5, most, most}}) &&
              keeps({.profile = {profile::kind::every, most, most - 3, 3}}));

// The device of the recipe and the one that the parameters are on, where both are known.
using on = keel::device::kind;
template <>
struct example<rule::X10> {
  static constexpr verdict broken = check(in_run(of<keel::device::cpu>, {.device = on::cuda}));
  static constexpr verdict kept = check(in_run(of<keel::device::cpu>, {.device = on::cpu}));
};
static_assert(breaks<rule::X10>(in_run(of<keel::device::cuda>, {.device = on::cpu})) &&
              keeps(in_run(of<keel::device::cuda>, {.device = on::cuda})));
static_assert(breaks<rule::X10>(in_run(of<captured>, {.device = on::cpu})) &&
              keeps(in_run(of<captured>, {.device = on::cuda})));
static_assert(keeps(in_run(of<keel::device::any>, {.device = on::cuda})) &&
              keeps(in_run(of<keel::device::cpu>, {.device = on::any})) && keeps(in_run(of<>, {.device = on::any})));
static_assert(keeps({.device = keel::device::cpu::configured, .run = {.device = on::cuda}}));

template <>
struct example<rule::T01> : recipes<recipe<packed>, recipe<packed, boundaries>> {};
static_assert(keeps(of<packed, keel::accept<"T01">>));

using groups = keel::objective::grpo<8>;
template <>
struct example<rule::T03> : recipes<recipe<packed, boundaries, groups>, recipe<packed, boundaries>> {};
static_assert(breaks<rule::T03>(of<packed, boundaries, keel::objective::ebft<8>>));
static_assert(keeps(of<boundaries, groups>));

template struct each_shown<rule::evaluation_rules>;

}  // namespace judged
