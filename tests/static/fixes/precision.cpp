// P: precision and loss scale.
#include "typed.hpp"

using namespace keel::literals;
namespace model = keel::model;
using keel::precision::bf16;
using keel::precision::fp16;
using closure = keel::optimizer::is<keel::optimizer::closure>;
using unscales = keel::optimizer::is<keel::optimizer::unscales>;

namespace fixed {

inline constexpr keel::run_facts without_fp16{.half_kernels = false, .bfloat16_kernels = true};
inline constexpr keel::run_facts without_bf16{.half_kernels = true, .bfloat16_kernels = false};
inline constexpr keel::run_facts without_either{.half_kernels = false, .bfloat16_kernels = false};

template <>
inline constexpr auto fixes<rule::P01> = said(
    FIX("add keel::loss_scale::dynamic<>", fp16, keel::loss_scale::dynamic<>), FIX("use keel::precision::bf16", keel::precision::bf16));
template <>
inline constexpr auto fixes<rule::P02> =
    said(FIX("keel::loss_scale::none", bf16, keel::loss_scale::none),
         FIX("keel::precision::fp16", keel::precision::fp16, keel::loss_scale::dynamic<>));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::precision>> =
    said(FIX("keep one of keel::precision::{fp32, bf16, fp16}", keel::precision::fp32),
         FIX("keep one of keel::precision::", keel::precision::bf16),
         FIX("keep one of keel::precision::", keel::precision::fp16, keel::loss_scale::dynamic<>));
template <>
inline constexpr auto fixes<rule::P04> =
    said(FIX("fp32 parameters; keel::precision casts", keel::precision::fp16, keel::loss_scale::dynamic<>));
template <>
inline constexpr auto fixes<rule::P06> =
    said(FIX("fp32 parameters", keel::accumulate<2>),
         FIX("keel::accept<\"P06\">", keel::accumulate<2>, model::has<model::bfloat16_parameters>, keel::accept<"P06">));
template <>
inline constexpr auto fixes<rule::P08> = said(FIX("keel::loss_scale::fixed<1024.0>", fp16, keel::loss_scale::fixed<1024.0>),
                                              FIX("dynamic<>", fp16, keel::loss_scale::dynamic<>));
template <>
inline constexpr auto fixes<rule::P09> = said(FIX("growth in (1, 1e38), backoff in (0, 1), floor up to initial, growth_interval and hysteresis at least 1", fp16,
         keel::loss_scale::dynamic<keel::loss_scale::growth<1.5>, keel::loss_scale::backoff<0.9>, keel::loss_scale::initial<8.0>,
                                   keel::loss_scale::floor<8.0>, keel::loss_scale::growth_interval<1>, keel::loss_scale::hysteresis<1>>),
         FIX("floor up to initial", fp16, keel::loss_scale::dynamic<keel::loss_scale::initial<0.5>, keel::loss_scale::floor<0.25>>));
template <>
inline constexpr auto fixes<rule::P10> =
    said(FIX("keel::loss_scale::at_floor_raise, with a floor above 0 and up to initial", fp16,
             keel::loss_scale::dynamic<keel::loss_scale::floor<1.0>, keel::loss_scale::at_floor_raise>),
         FIX("a floor above 0 and up to initial", fp16,
             keel::loss_scale::dynamic<keel::loss_scale::initial<0.5>, keel::loss_scale::floor<0.25>, keel::loss_scale::at_floor_raise>));
template <>
inline constexpr auto fixes<rule::P11> = said(FIX("keel::precision::bf16 without a loss scale", keel::precision::bf16, closure),
                                              FIX("AdamW", fp16, keel::loss_scale::dynamic<>),
                                              FIX("SGD", fp16, keel::loss_scale::dynamic<>));
template <>
inline constexpr auto fixes<rule::P12> = said(FIX("keel::precision::bf16 without a loss scale", keel::precision::bf16, unscales),
                                              FIX("another optimizer", fp16, keel::loss_scale::dynamic<>));
template <>
inline constexpr auto fixes<rule::P14> =
    said(FIX_IN_RUN("keel::precision::bf16 without a loss scale", without_fp16, keel::precision::bf16),
         FIX_IN_RUN("move the model to a GPU", (keel::run_facts{.half_kernels = true}), fp16, keel::loss_scale::dynamic<>));
template <>
inline constexpr auto fixes<rule::P15> =
    said(FIX_IN_RUN("keel::precision::fp16 with keel::loss_scale::dynamic<>", without_bf16, keel::precision::fp16, keel::loss_scale::dynamic<>),
         FIX_IN_RUN("keel::precision::fp32", without_either, keel::precision::fp32));
template struct each_followed<rule::precision_rules>;

// Under sanitizers g++ 12 takes the text, which is put together, for no constant.
#ifndef __SANITIZE_ADDRESS__
template struct each_followed<rule::list<rule::given_twice<keel::slot::precision>>>;
#endif

}  // namespace fixed
