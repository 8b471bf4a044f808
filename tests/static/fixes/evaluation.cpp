// E: evaluation.
#include "typed.hpp"

using namespace keel::literals;
namespace evaluation = keel::evaluation;

namespace fixed {

template <>
inline constexpr auto fixes<rule::E02> =
    said(FIX("an interval of at least 1, no negative option", evaluation::every<1_steps, evaluation::early_stop<2>>),
         FIX("keel::evaluation::batches<N> if its data is endless", evaluation::every<1_steps, keel::evaluation::batches<8>>));
template <>
inline constexpr auto fixes<rule::E20> =
    said(FIX("add keel::ema<0.999>", evaluation::every<1_steps, evaluation::averaged>, keel::ema<0.999>),
         FIX("remove keel::evaluation::averaged", evaluation::every<1_steps>));
template <>
inline constexpr auto fixes<rule::E21> =
    said(FIX("keel::evaluation::early_stop<5>", evaluation::every<1_steps, evaluation::min_delta<0.1>, evaluation::not_before<100_steps>,
                                                                  evaluation::larger_is_better, evaluation::monitor<"accuracy">,
                                                                  keel::evaluation::early_stop<5>>),
         FIX("remove them", evaluation::every<1_steps>));
template struct each_followed<rule::evaluation_rules>;

}  // namespace fixed
