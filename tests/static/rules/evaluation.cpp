// E: evaluation.
#include "example.hpp"

namespace judged {

using namespace keel::literals;
namespace data = keel::data;
namespace evaluation = keel::evaluation;
using evaluation::batches;

template <>
struct example<rule::E28> : recipes<recipe<evaluation::every<0_steps>>, recipe<evaluation::every<1_steps>>> {};
static_assert(breaks<rule::E28>(of<evaluation::every<1_steps, batches<-1>>>) &&
              keeps(of<evaluation::every<1_steps, batches<0>>>));
static_assert(breaks<rule::E28>(of<evaluation::every<1_steps, evaluation::early_stop<-1>>>) &&
              keeps(of<evaluation::every<1_steps, evaluation::early_stop<0>>>));
static_assert(breaks<rule::E28>(of<evaluation::every<1_steps, evaluation::stop_at<std::numeric_limits<double>::quiet_NaN()>>>) &&
              breaks<rule::E28>(of<evaluation::every<1_steps, evaluation::stop_at<-std::numeric_limits<double>::infinity()>>>) &&
              keeps(of<evaluation::every<1_steps, evaluation::stop_at<-1e300>>>));
static_assert(keeps(in_run(of<evaluation::every<1_steps>>, {})));
// An interval beyond the run, whose length is the schedule's or, at construction, the options'.
static_assert(breaks<rule::E28>(of<evaluation::every<61_steps>, keel::schedule::cosine<keel::schedule::total<60_steps>>>) &&
              keeps(of<evaluation::every<60_steps>, keel::schedule::cosine<keel::schedule::total<60_steps>>>));
// A run may outlast a schedule that does not end at zero; what a part of a run counts is not the run's.
static_assert(keeps(of<evaluation::every<61_steps>, keel::schedule::cosine<keel::schedule::total<60_steps>, keel::schedule::min_ratio<0.1>>>));
static_assert(keeps(in_run(of<evaluation::every<61_steps>>, {.updates = 60, .is_part = true})));
static_assert(breaks<rule::E28>(in_run(of<evaluation::every<61_steps>>, {.updates = 60})) &&
              keeps(in_run(of<evaluation::every<60_steps>>, {.updates = 60})));
static_assert(breaks<rule::E28>(of<evaluation::every<1_epochs>, data::is<data::endless>>));
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
static_assert(breaks<rule::E28>(of<every<1_steps, evaluation::min_delta<-0.1>, early_stop<2>>>));
static_assert(breaks<rule::E28>(
    of<every<1_steps, evaluation::not_before<keel::steps{-1}>, early_stop<2>>>));

template struct each_shown<rule::evaluation_rules>;

}  // namespace judged
