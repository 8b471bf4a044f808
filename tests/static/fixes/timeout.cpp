// H: how long things may take.
#include "typed.hpp"

using namespace keel::literals;
namespace timeout = keel::timeout;
using saves = keel::checkpoint::every<500_steps>;

namespace fixed {

template <>
inline constexpr auto fixes<rule::H01> =
    said(FIX("keel::timeout::hard above soft", timeout::set<timeout::soft<10_min>, keel::timeout::hard<11_min>, timeout::longest_update<2_min>>),
         FIX("collective above both", timeout::set<timeout::hard<10_min>, timeout::collective<11_min>>),
         FIX("collective above both", timeout::set<timeout::soft<2_min>, timeout::collective<3_min>>),
         FIX("keel::timeout::hard above soft, collective above both",
             timeout::set<timeout::soft<1_min>, keel::timeout::hard<5_min>, timeout::collective<10_min>>));
template <>
inline constexpr auto fixes<rule::H02> =
    said(FIX("keel::timeout::heartbeat<5_s, 30_s>, interval below soft, limit below collective",
             timeout::set<keel::timeout::heartbeat<5_s, 30_s>, timeout::soft<6_s>, timeout::collective<31_s>>));
template <>
inline constexpr auto fixes<rule::H03> =
    said(FIX("keel::timeout::force_exit below grace and above longest_update plus longest_save", saves,
             timeout::set<keel::timeout::force_exit<58_s>, timeout::grace<60_s>, timeout::longest_save<55_s>>),
         FIX("keel::timeout::force_exit below grace", saves, timeout::set<keel::timeout::force_exit<50_s>, timeout::grace<60_s>>));
template <>
inline constexpr auto fixes<rule::H04> =
    said(FIX("keel::timeout::grace above longest_update plus longest_save", saves,
             timeout::set<keel::timeout::grace<90_s>, timeout::longest_update<20_s>, timeout::longest_save<40_s>>),
         FIX("keel::timeout::grace above longest_update plus longest_save, force_exit between them", saves,
             timeout::set<keel::timeout::grace<90_s>, timeout::force_exit<80_s>, timeout::longest_update<20_s>, timeout::longest_save<40_s>>));
template <>
inline constexpr auto fixes<rule::H07> =
    said(FIX("keel::timeout::collective and hard above first_update",
             timeout::set<timeout::first_update<10_min>, timeout::hard<11_min>, keel::timeout::collective<12_min>>),
         FIX("keel::accept<\"H07\">", timeout::set<timeout::first_update<10_min>, timeout::collective<10_min>>, keel::accept<"H07">));
template <>
inline constexpr auto fixes<rule::H10> =
    said(FIX("keel::timeout::soft over longest_update, hard over soft, collective over hard",
             timeout::set<keel::timeout::soft<61_s>, timeout::hard<62_s>, timeout::collective<63_s>, timeout::longest_update<60_s>>),
         FIX("hard over soft", timeout::set<timeout::hard<61_s>, timeout::longest_update<60_s>>),
         FIX("collective over hard", timeout::set<timeout::soft<61_s>, timeout::collective<62_s>, timeout::longest_update<60_s>>));
template <>
inline constexpr auto fixes<rule::E31> =
    said(FIX("keel::timeout::collective above longest_save", timeout::set<timeout::longest_save<60_s>, keel::timeout::collective<61_s>>),
         FIX("keel::accept<\"E31\">", timeout::set<timeout::longest_save<60_s>, timeout::collective<60_s>>, keel::accept<"E31">));
template <>
inline constexpr auto fixes<rule::S23> =
    said(FIX("keel::checkpoint::every<10_min>", keel::checkpoint::every<10_min>, timeout::set<timeout::grace<60_s>>),
         FIX("keel::checkpoint::every<10_min>", keel::checkpoint::every<10_min>, timeout::set<timeout::grace<60_s>>,
             keel::evaluation::every<300_steps, keel::evaluation::early_stop<3>>),
         FIX("remove keel::timeout::grace", timeout::set<timeout::soft<60_s>>));
template <>
inline constexpr auto fixes<rule::H13> =
    said(FIX("a duration such as 30_s", timeout::set<timeout::soft<30_s>>), FIX("10_min", timeout::set<timeout::soft<10_min>>));

template struct each_followed<rule::timeout_rules>;

}  // namespace fixed
