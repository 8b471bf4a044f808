// E: evaluation.
#include "typed.hpp"

using namespace keel::literals;
namespace evaluation = keel::evaluation;

namespace fixed {

template <>
inline constexpr auto fixes<rule::E28> =
    said(FIX("an interval from 1 to the run's length, options from 0 on and finite", evaluation::every<1_steps, evaluation::early_stop<2>, evaluation::min_delta<0.1>>),
         FIX_IN_RUN("an interval from 1 to the run's length", keel::run_facts{.updates = 60}, evaluation::every<60_steps>),
         FIX("batches<N> if its data is endless", evaluation::every<1_steps, keel::evaluation::batches<8>>));
template <>
inline constexpr auto fixes<rule::E20> =
    said(FIX("add keel::ema<0.999>", evaluation::every<1_steps, evaluation::averaged>, keel::ema<0.999>),
         FIX("remove keel::evaluation::averaged", evaluation::every<1_steps>));
template <>
inline constexpr auto fixes<rule::E21> =
    said(FIX("remove them", evaluation::every<1_steps>),
         FIX("keel::evaluation::early_stop<5>", evaluation::every<1_steps, evaluation::min_delta<0.1>, evaluation::not_before<100_steps>,
             evaluation::larger_is_better, evaluation::monitor<"accuracy">, keel::evaluation::early_stop<5>>),
         FIX("keel::evaluation::early_stop<5>, with saves at evaluations", keel::checkpoint::every<600_steps>,
             evaluation::every<300_steps, evaluation::monitor<"accuracy">, keel::evaluation::early_stop<5>>));
template struct each_followed<rule::evaluation_rules>;

}  // namespace fixed
