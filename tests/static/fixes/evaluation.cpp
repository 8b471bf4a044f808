// E, X, T: evaluation, profiles, captured graphs, packed sequences.
#include "typed.hpp"

using namespace keel::literals;
namespace data = keel::data;
namespace evaluation = keel::evaluation;
using captured = keel::device::cuda_with<keel::device::graph_captured>;
using packed = data::is<data::packed>;
using groups = keel::objective::grpo<8>;
using halving = keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>;

namespace fixed {

inline constexpr keel::run_facts on_a_gpu{.device = keel::device::kind::cuda};

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
template <>
inline constexpr auto fixes<rule::X03> = said(FIX("keel::device::cuda", keel::device::cuda, data::is<data::ragged, data::token_weighted>),
                                              FIX("keel::device::cuda", keel::device::cuda, halving),
                                              FIX("padded data and no rung that halves", captured),
                                              FIX("shortens", captured, keel::oom::raise));
template <>
inline constexpr auto fixes<rule::X10> = said(FIX_IN_RUN("model->to(device)", on_a_gpu, keel::device::cuda),
                                              FIX_IN_RUN("keel::device::any", on_a_gpu, keel::device::any));
template <>
inline constexpr auto fixes<rule::X07> =
    said(FIX("keel::profile::every<1000_steps, warmup<1>, active<3>>",
             keel::profile::every<1000_steps, keel::profile::warmup<1>, keel::profile::active<3>>));
template <>
inline constexpr auto fixes<rule::T01> =
    said(FIX("keel::model::has<keel::model::sequence_boundaries> if attention stops there", packed, keel::model::has<keel::model::sequence_boundaries>),
         FIX("keel::accept<\"T01\">", packed, keel::accept<"T01">));
template <>
inline constexpr auto fixes<rule::T03> =
    said(FIX("data that is not keel::data::packed", groups),
         FIX("keel::objective::supervised", packed, keel::model::has<keel::model::sequence_boundaries>, keel::objective::supervised));

template struct each_followed<rule::evaluation_rules>;

}  // namespace fixed
