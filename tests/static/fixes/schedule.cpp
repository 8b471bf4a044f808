// L: the learning rate.
#include "typed.hpp"

using namespace keel::literals;
namespace schedule = keel::schedule;

namespace fixed {

inline constexpr keel::run_facts in_2000_updates{.updates = 2000};

inline constexpr keel::run_facts of_any_length{.updates = 0};
inline constexpr keel::run_facts of_2000_updates{.updates = 2000, .learning_rate = 1e-3};

template <>
inline constexpr auto fixes<rule::L01> =
    said(FIX("keep keel::schedule::warmup", schedule::cosine<keel::schedule::warmup<10_steps>>),
         FIX("keel::schedule::warmup_ratio", schedule::cosine<keel::schedule::warmup_ratio<0.1>>));
template <>
inline constexpr auto fixes<rule::L02> =
    said(FIX("keel::schedule::warmup plus decay shorter than the run and its total",
             schedule::warmup_stable_decay<keel::schedule::warmup<100_steps>, schedule::decay<200_steps>, schedule::total<1000_steps>>),
         FIX_IN_RUN("keel::schedule::warmup plus decay shorter than the run", of_2000_updates,
                    schedule::inverse_root<keel::schedule::warmup<1000_steps>>),
         FIX_IN_RUN("keel::schedule::warmup plus decay shorter than the run", of_2000_updates,
                    schedule::constant_with<keel::schedule::warmup<1999_steps>>),
         FIX_IN_RUN("keel::schedule::warmup plus decay shorter than the run", of_2000_updates,
                    schedule::cosine<keel::schedule::warmup<100_steps>>),
         FIX("none below 0", schedule::warmup_stable_decay<schedule::decay<5_steps>>));
template <>
inline constexpr auto fixes<rule::L03> =
    said(FIX("min_ratio, start_ratio in [0, 1]", schedule::one_cycle<schedule::start_ratio<1.0>, schedule::min_ratio<0.1>>),
         FIX("warmup_ratio in [0, 1)", schedule::cosine<schedule::warmup_ratio<0.9>>),
         FIX_IN_RUN("min_lr in [0, rate]", of_2000_updates, schedule::cosine<schedule::min_lr<1e-3>>),
         FIX("min_lr in [0, rate]", schedule::cosine<schedule::min_lr<0.0>>),
         FIX_IN_RUN("min_lr in [0, rate]", of_2000_updates, schedule::cosine<schedule::min_lr<1e-4>>, keel::checkpoint::every<500_steps>,
                    keel::nonfinite::rollback<10, keel::nonfinite::lower_lr>));
template <>
inline constexpr auto fixes<rule::L04> =
    said(FIX_IN_RUN("keel::schedule::total<D>", of_any_length, schedule::cosine<keel::schedule::total<1000_steps>, schedule::min_ratio<0.1>>),
         FIX_IN_RUN("options.updates", of_2000_updates, schedule::cosine<schedule::min_ratio<0.1>>),
         FIX_IN_RUN("options.epochs with batches_per_epoch", of_2000_updates,
                    schedule::warmup_stable_decay<schedule::warmup<1000_steps>, schedule::decay<999_steps>>));
template <>
inline constexpr auto fixes<rule::L11> =
    said(FIX("remove keel::schedule::decay", schedule::cosine<>),
         FIX("use warmup_stable_decay", schedule::warmup_stable_decay<schedule::decay<10_steps>>));
template <>
inline constexpr auto fixes<rule::L12> = said(FIX("remove min_ratio and min_lr", schedule::constant_with<schedule::warmup<10_steps>>),
                                              FIX("use keel::schedule::cosine", keel::schedule::cosine<schedule::min_ratio<0.1>>));
template <>
inline constexpr auto fixes<rule::L13> =
    said(FIX("keel::schedule::decay<D> that leaves warmup room",
             schedule::warmup_stable_decay<schedule::warmup<10_steps>, keel::schedule::decay<20_steps>, schedule::total<100_steps>>),
         FIX("keel::schedule::decay<D>", schedule::warmup_stable_decay<keel::schedule::decay<200_steps>>),
         FIX("keel::schedule::constant_with warmup alone", keel::schedule::constant_with<schedule::warmup<10_steps>>));
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
    said(FIX("remove it", schedule::cosine<>), FIX("remove it", schedule::cosine<schedule::total<1000_steps>>),
         FIX("remove it", schedule::plateau<>), FIX("remove it", schedule::warm_restarts<schedule::cycle<10_steps>>));
template <>
inline constexpr auto fixes<rule::L17> =
    said(FIX("schedule::patience<D> within the run", schedule::plateau<schedule::patience<1000_steps>>),
         FIX_IN_RUN("schedule::patience<D> within the run", in_2000_updates, schedule::plateau<schedule::patience<1000_steps>>),
         FIX("evaluations<3> with evaluation::every; lowered_by<0.5>, threshold<0.01>",
             schedule::plateau<schedule::evaluations<3>, schedule::lowered_by<0.5>, schedule::threshold<0.01>>,
             keel::evaluation::every<100_steps>));
template <>
inline constexpr auto fixes<rule::L18> =
    said(FIX("remove it", schedule::cosine<>), FIX("remove it", schedule::cosine<schedule::total<1000_steps>>),
         FIX("remove it", schedule::multi_step<schedule::milestones<10_steps>>),
         FIX("remove it", schedule::step_decay<schedule::interval<10_steps>>));
template <>
inline constexpr auto fixes<rule::L19> =
    said(FIX("lowered_by<0.1>", schedule::multi_step<schedule::milestones<10_steps>, schedule::lowered_by<0.1>>),
         FIX("lowered_by<0.1>; in step_decay and exponential also keel::schedule::interval<D> within the run",
             schedule::step_decay<schedule::lowered_by<0.1>, keel::schedule::interval<1000_steps>>),
         FIX_IN_RUN("keel::schedule::interval<D> within the run", in_2000_updates,
                    schedule::step_decay<keel::schedule::interval<1000_steps>>),
         FIX("lowered_by<0.1>; in step_decay and exponential also keel::schedule::interval<D>",
             schedule::exponential<schedule::lowered_by<0.1>, keel::schedule::interval<1000_steps>>));
template <>
inline constexpr auto fixes<rule::L20> =
    said(FIX("keel::schedule::milestones<A, B> above the warmup, below the end",
             schedule::multi_step<keel::schedule::milestones<1000_steps, 2000_steps>, schedule::warmup<999_steps>>),
         FIX_IN_RUN("keel::schedule::milestones<A, B> above the warmup, below the end", in_2000_updates,
                    schedule::multi_step<keel::schedule::milestones<1000_steps, 1999_steps>>));
template <>
inline constexpr auto fixes<rule::L21> = said(FIX("keel::schedule::power<2.0>", schedule::polynomial<keel::schedule::power<2.0>>),
                                              FIX("keel::schedule::linear", keel::schedule::linear<>));
template <>
inline constexpr auto fixes<rule::L22> =
    said(FIX("warmup<4000_steps>", schedule::inverse_root<schedule::warmup<4000_steps>>),
         FIX_IN_RUN("keel::schedule::warmup<D> shorter than the run", of_2000_updates,
                    schedule::inverse_root<keel::schedule::warmup<1000_steps>>));
template <>
inline constexpr auto fixes<rule::L23> =
    said(FIX("keel::schedule::cycle<1000_steps>, cycle_factor<2>", schedule::warm_restarts<keel::schedule::cycle<1000_steps>, schedule::cycle_factor<2>>));
template <>
inline constexpr auto fixes<rule::L24> =
    said(FIX("keel::evaluation::every<500_steps>", schedule::plateau<schedule::evaluations<3>>, keel::evaluation::every<500_steps>),
         FIX("patience in place of evaluations", schedule::plateau<schedule::patience<1000_steps>>),
         FIX("keel::accept<\"L24\">", schedule::plateau<schedule::evaluations<3>>, keel::accept<"L24">));
template <>
inline constexpr auto fixes<rule::L25> =
    said(FIX("remove keel::schedule::total", schedule::constant_with<schedule::warmup<10_steps>>),
         FIX("remove keel::schedule::total", schedule::step_decay<schedule::interval<10_steps>>),
         FIX("use keel::schedule::cosine with warmup, total and minimum alone",
             keel::schedule::cosine<schedule::warmup<10_steps>, schedule::total<100_steps>, schedule::min_ratio<0.1>>));

template struct each_followed<rule::schedule_rules>;

}  // namespace fixed
