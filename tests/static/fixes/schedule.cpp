// L: the learning rate.
#include "typed.hpp"

using namespace keel::literals;
namespace schedule = keel::schedule;

namespace fixed {

inline constexpr keel::run_facts of_any_length{.updates = 0};
inline constexpr keel::run_facts of_2000_updates{.updates = 2000, .learning_rate = 1e-3};

template <>
inline constexpr auto fixes<rule::L01> =
    said(FIX("keep keel::schedule::warmup", schedule::cosine<keel::schedule::warmup<10_steps>>),
         FIX("keel::schedule::warmup_ratio", schedule::cosine<keel::schedule::warmup_ratio<0.1>>));
template <>
inline constexpr auto fixes<rule::L02> =
    said(FIX("warmup plus decay shorter than keel::schedule::total<1000_steps>",
             schedule::warmup_stable_decay<schedule::warmup<100_steps>, schedule::decay<200_steps>, keel::schedule::total<1000_steps>>));
template <>
inline constexpr auto fixes<rule::L03> =
    said(FIX("keel::schedule::min_ratio<0.1>", schedule::cosine<keel::schedule::min_ratio<0.1>>),
         FIX_IN_RUN("a smaller min_lr", of_2000_updates, schedule::cosine<schedule::min_lr<1e-4>>));
template <>
inline constexpr auto fixes<rule::L04> =
    said(FIX_IN_RUN("keel::schedule::total<1000_steps>", of_any_length, schedule::cosine<keel::schedule::total<1000_steps>, schedule::min_ratio<0.1>>),
         FIX_IN_RUN("options.updates", of_2000_updates, schedule::cosine<>));
template <>
inline constexpr auto fixes<rule::L11> =
    said(FIX("remove keel::schedule::decay", schedule::cosine<>),
         FIX("use warmup_stable_decay", schedule::warmup_stable_decay<schedule::decay<10_steps>>));
template <>
inline constexpr auto fixes<rule::L12> = said(FIX("remove min_ratio and min_lr", schedule::constant_with<schedule::warmup<10_steps>>),
                                              FIX("use keel::schedule::cosine", keel::schedule::cosine<schedule::min_ratio<0.1>>));
template <>
inline constexpr auto fixes<rule::L13> =
    said(FIX("add keel::schedule::decay<200_steps>", schedule::warmup_stable_decay<keel::schedule::decay<200_steps>>),
         FIX("use keel::schedule::constant_with", keel::schedule::constant_with<schedule::warmup<10_steps>>));
template <>
inline constexpr auto fixes<rule::L14> =
    said(FIX_IN_RUN("keel::schedule::min_ratio<0.1>", of_2000_updates, schedule::cosine<schedule::total<1000_steps>, keel::schedule::min_ratio<0.1>>),
         FIX_IN_RUN("a total equal to the run's length", of_2000_updates, schedule::cosine<schedule::total<2000_steps>>));
template <>
inline constexpr auto fixes<rule::L15> =
    said(FIX("keep keel::schedule::min_ratio", schedule::cosine<keel::schedule::min_ratio<0.1>>),
         FIX("keel::schedule::min_lr", schedule::cosine<keel::schedule::min_lr<1e-5>>));
template <>
inline constexpr auto fixes<rule::L16> =
    said(FIX("remove it", schedule::cosine<>), FIX("use that schedule", schedule::one_cycle<schedule::start_ratio<0.04>>),
         FIX("use that schedule", schedule::plateau<schedule::patience<1000_steps>, schedule::threshold<0.01>>),
         FIX("use that schedule", schedule::plateau<schedule::evaluations<3>>, keel::evaluation::every<100_steps>),
         FIX("use that schedule", schedule::step_decay<schedule::interval<1000_steps>, schedule::lowered_by<0.1>>));
template <>
inline constexpr auto fixes<rule::L17> =
    said(FIX("keel::schedule::patience<1000_steps>, lowered_by<0.5>, threshold<0.01>",
             schedule::plateau<keel::schedule::patience<1000_steps>, schedule::lowered_by<0.5>, schedule::threshold<0.01>>));
template <>
inline constexpr auto fixes<rule::L18> =
    said(FIX("remove it", schedule::cosine<>), FIX("use that schedule", schedule::exponential<schedule::interval<1000_steps>, schedule::lowered_by<0.5>>),
         FIX("use that schedule", schedule::multi_step<schedule::milestones<10_steps, 20_steps>>),
         FIX("use that schedule", schedule::polynomial<schedule::power<2.0>>),
         FIX("use that schedule", schedule::warm_restarts<schedule::cycle<100_steps>>));
template <>
inline constexpr auto fixes<rule::L19> =
    said(FIX("keel::schedule::lowered_by<0.1>, keel::schedule::interval<1000_steps>",
             schedule::step_decay<keel::schedule::lowered_by<0.1>, keel::schedule::interval<1000_steps>>));
template <>
inline constexpr auto fixes<rule::L20> =
    said(FIX("keel::schedule::milestones<1000_steps, 2000_steps>", schedule::multi_step<keel::schedule::milestones<1000_steps, 2000_steps>>));
template <>
inline constexpr auto fixes<rule::L21> = said(FIX("keel::schedule::power<2.0>", schedule::polynomial<keel::schedule::power<2.0>>),
                                              FIX("keel::schedule::linear", keel::schedule::linear<>));
template <>
inline constexpr auto fixes<rule::L22> =
    said(FIX("keel::schedule::warmup<4000_steps>", schedule::inverse_root<keel::schedule::warmup<4000_steps>>));
template <>
inline constexpr auto fixes<rule::L23> =
    said(FIX("keel::schedule::cycle<1000_steps>, cycle_factor<2>", schedule::warm_restarts<keel::schedule::cycle<1000_steps>, schedule::cycle_factor<2>>));
template <>
inline constexpr auto fixes<rule::L24> =
    said(FIX("keel::evaluation::every<500_steps>", schedule::plateau<schedule::evaluations<3>>, keel::evaluation::every<500_steps>),
         FIX("patience<1000_steps>", schedule::plateau<schedule::patience<1000_steps>>),
         FIX("keel::accept<\"L24\">", schedule::plateau<schedule::evaluations<3>>, keel::accept<"L24">));
template <>
inline constexpr auto fixes<rule::L25> =
    said(FIX("remove keel::schedule::total", schedule::constant_with<schedule::warmup<10_steps>>),
         FIX("use keel::schedule::cosine", keel::schedule::cosine<schedule::warmup<10_steps>, schedule::total<100_steps>>));

template struct each_followed<rule::schedule_rules>;

}  // namespace fixed
