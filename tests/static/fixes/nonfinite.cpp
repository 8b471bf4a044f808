// N: what is done about values that are not finite, and about spikes.
#include "typed.hpp"

using namespace keel::literals;
namespace nonfinite = keel::nonfinite;
namespace spike = keel::spike;
using keel::shard::replicate;
using saves = keel::checkpoint::every<500_steps>;
using asserts = keel::device::cuda_with<keel::device::device_assert>;
using read_once = keel::data::is<keel::data::single_pass>;

namespace fixed {

template <>
inline constexpr auto fixes<rule::N01> = said(FIX("remove keel::nonfinite::rank_local", replicate, nonfinite::skip<10>));
template <>
inline constexpr auto fixes<rule::N02> =
    said(FIX("keel::nonfinite::raise without rank_local", replicate, keel::nonfinite::raise));
template <>
inline constexpr auto fixes<rule::N06> =
    said(FIX("a limit of at least 1, as in keel::nonfinite::skip<10>", keel::nonfinite::skip<10>),
         FIX("a limit of at least 1", nonfinite::skip<1>));
template <>
inline constexpr auto fixes<rule::N09> =
    said(FIX("add keel::checkpoint::every<500_steps>", nonfinite::rollback<10>, keel::checkpoint::every<500_steps>),
         FIX("add keel::checkpoint::every<500_steps>", spike::rollback<>, keel::checkpoint::every<500_steps>),
         FIX("skip instead of rolling back", nonfinite::skip<10>), FIX("skip instead of rolling back", spike::skip<>));
template <>
inline constexpr auto fixes<rule::N10> =
    said(FIX("keel::nonfinite::skip_data", saves, nonfinite::rollback<10, keel::nonfinite::skip_data>),
         FIX("lower_lr", saves, nonfinite::rollback<10, keel::nonfinite::lower_lr>),
         FIX("reseed", saves, nonfinite::rollback<10, keel::nonfinite::reseed>));
template <>
inline constexpr auto fixes<rule::N11> =
    said(FIX("keel::nonfinite::attempts<3>", saves, nonfinite::rollback<10, keel::nonfinite::attempts<3>>),
         FIX("keel::spike::attempts<3>", saves, spike::rollback<keel::spike::attempts<3>>));
template <>
inline constexpr auto fixes<rule::N12> =
    said(FIX("a larger keel::checkpoint::keep<N>", keel::checkpoint::every<500_steps, keel::checkpoint::keep<3>>,
             nonfinite::rollback<600>),
         FIX("keep_every<5000_steps>", keel::checkpoint::every<500_steps, keel::checkpoint::keep_every<5000_steps>>,
             nonfinite::rollback<600>),
         FIX("a shorter patience", saves, nonfinite::rollback<500>));
template <>
inline constexpr auto fixes<rule::N15> =
    said(FIX("nonfinite::raise with spike::ignore", asserts, keel::nonfinite::raise, keel::spike::ignore),
         FIX("remove device_assert", keel::device::cuda, nonfinite::skip<10>));
template <>
inline constexpr auto fixes<rule::N18> =
    said(FIX("remove keel::spike::rank_local, so the reduced loss decides", replicate, spike::skip<>));
template <>
inline constexpr auto fixes<rule::N27> =
    said(FIX("keel::spike::zscore<6.0>, ratio<4.0>, window<128>",
             spike::skip<keel::spike::zscore<6.0>, keel::spike::ratio<4.0>, keel::spike::window<128>>));
template <>
inline constexpr auto fixes<rule::N29> = said(FIX("keel::spike::in_a_row<10>", spike::skip<keel::spike::in_a_row<10>>));
template <>
inline constexpr auto fixes<rule::N30> =
    said(FIX("keel::incident::trace<3>", keel::incident::trace<3>), FIX("keel::incident::off", keel::incident::off));
template <>
inline constexpr auto fixes<rule::N28> = said(FIX("skip instead of rolling back", read_once, saves, nonfinite::skip<10>),
                                              FIX("skip instead of rolling back", read_once, saves, spike::skip<>),
                                              FIX("use data that can be reread", saves, nonfinite::rollback<10>));

template struct each_followed<rule::nonfinite_rules>;

}  // namespace fixed
