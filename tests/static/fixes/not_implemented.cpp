// U: what this version has no mechanism for, and what a bare step lacks. Such a recipe is valid; a step or trainer refuses it.
#include <keel/rule/not_implemented.hpp>

#include "typed.hpp"

using namespace keel::literals;
namespace timeout = keel::timeout;

namespace fixed {

template <>
inline constexpr auto fixes<rule::U04> = said(FIX("keel::shard::zero<2>", keel::shard::zero<2>, keel::nonfinite::skip<10, keel::nonfinite::exceptions>),
                                              FIX("a recipe without them", keel::shard::zero<3>));
template <>
inline constexpr auto fixes<rule::U08> =
    said(FIX("keel::health::off", keel::health::off, keel::objective::grpo<8>),
         FIX("sft with keel::objective::supervised", keel::health::sft, keel::objective::supervised));
template <>
inline constexpr auto fixes<rule::U09> =
    said(FIX("keel::objective::supervised", keel::objective::supervised),
         FIX("keel::objective::supervised, with keel::health::sft", keel::objective::supervised, keel::health::sft),
         FIX("off", keel::objective::supervised, keel::health::off));
template <>
inline constexpr auto fixes<rule::U13> = said(FIX_BESIDE("keel::trainer", "keel::trainer", keel::checkpoint::every<500_steps>),
                                              FIX("keel::checkpoint::never", keel::checkpoint::never));
template <>
inline constexpr auto fixes<rule::U22> =
    said(FIX_BESIDE("keel::trainer", "keel::trainer", keel::determinism::seeded<1>),
         FIX_BESIDE("keel::determinism::off and at::manual_seed", "at::manual_seed", keel::determinism::off));
template <>
inline constexpr auto fixes<rule::U23> =
    said(FIX_BESIDE("keel::trainer", "keel::trainer", keel::nonfinite::warn<10>),
         FIX("keel::nonfinite::skip<10> and a look at the outcome", keel::nonfinite::skip<10>));
template <>
inline constexpr auto fixes<rule::U36> =
    said(FIX_BESIDE("keel::trainer", "keel::trainer", keel::nonfinite::rollback<10>, keel::checkpoint::every<500_steps>),
         FIX("keel::nonfinite::skip<10> and keel::spike::skip<>", keel::nonfinite::skip<10>, keel::spike::skip<>));
template <>
inline constexpr auto fixes<rule::U37> =
    said(FIX_BESIDE("keel::trainer", "keel::trainer", keel::evaluation::every<500_steps>),
         FIX_BESIDE("keel::evaluation::none and keel::evaluate", "keel::evaluate", keel::evaluation::none),
         FIX_BESIDE("keel::evaluation::none and keel::evaluate, for a plateau with keel::accept<\"L24\">", "keel::evaluate", keel::evaluation::none,
                    keel::schedule::plateau<keel::schedule::evaluations<3>>, keel::accept<"L24">));
template <>
inline constexpr auto fixes<rule::U38> =
    said(FIX_BESIDE("keel::trainer", "keel::trainer", keel::checkpoint::every<500_steps>, timeout::set<timeout::grace<60_s>>),
         FIX("keel::timeout::none", keel::timeout::none));

template <>
inline constexpr auto fixes<rule::U41> =
    said(FIX_BESIDE("keel::trainer", "keel::trainer", keel::health::sft), FIX("keel::health::off", keel::health::off));
template <>
inline constexpr auto fixes<rule::U43> =
    said(FIX_BESIDE("keel::trainer", "keel::trainer", keel::batch_guard::check<>),
         FIX_BESIDE("keel::batch_guard::on and keel::batch_watch", "keel::batch_watch", keel::batch_guard::on));
template <>
inline constexpr auto fixes<rule::U44> = said(FIX_BESIDE("keel::trainer", "keel::trainer", keel::profile::every<500_steps>),
                                              FIX("keel::profile::off", keel::profile::off));
template <>
inline constexpr auto fixes<rule::U46> = said(FIX_BESIDE("keel::trainer", "keel::trainer", keel::incident::keep<3>),
                                              FIX("keel::incident::trace<3>", keel::incident::trace<3>));

template <>
inline constexpr auto fixes<rule::U58> = said(FIX_BESIDE("keel::trainer", "keel::trainer", timeout::set<timeout::hard<5_min>>),
                                              FIX("remove soft, hard, first_update, force_exit and heartbeat", timeout::none));

template struct each_followed<rule::rules_not_implemented>;
template struct each_followed<rule::trainer_only_rules>;

}  // namespace fixed
