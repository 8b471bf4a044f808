// N: what is done about values that are not finite, and about spikes.
#include "typed.hpp"

using namespace keel::literals;
namespace nonfinite = keel::nonfinite;
namespace spike = keel::spike;
using saves = keel::checkpoint::every<500_steps>;
using asserts = keel::device::cuda_with<keel::device::device_assert>;
using read_once = keel::data::is<keel::data::single_pass>;

namespace fixed {

inline constexpr keel::run_facts in_2000_updates{.updates = 2000};

template <>
inline constexpr auto fixes<rule::N06> =
    said(FIX("a limit of at least 1, as in keel::nonfinite::skip<10>", keel::nonfinite::skip<10>),
         FIX("a limit of at least 1", nonfinite::skip<1>));
template <>
inline constexpr auto fixes<rule::N09> =
    said(FIX("add keel::checkpoint::every<10_min>", nonfinite::rollback<10>, keel::checkpoint::every<10_min>),
         FIX("add keel::checkpoint::every<10_min>", nonfinite::rollback<600>, keel::checkpoint::every<10_min>),
         FIX("add keel::checkpoint::every<10_min>", spike::rollback<spike::window<1000>>, keel::checkpoint::every<10_min>),
         FIX("skip instead of rolling back", nonfinite::skip<10>), FIX("skip instead of rolling back", spike::skip<>));
template <>
inline constexpr auto fixes<rule::N10> =
    said(FIX("keel::nonfinite::skip_data", saves, nonfinite::rollback<10, keel::nonfinite::skip_data>),
         FIX("lower_lr", saves, nonfinite::rollback<10, keel::nonfinite::lower_lr>),
         FIX("reseed", saves, nonfinite::rollback<10, keel::nonfinite::reseed>));
template <>
inline constexpr auto fixes<rule::N11> =
    said(FIX("keel::nonfinite::attempts<3> in nonfinite::rollback", saves, nonfinite::rollback<10, keel::nonfinite::attempts<3>>),
         FIX("keel::spike::attempts<3> in spike::rollback", saves, spike::rollback<keel::spike::attempts<3>>),
         FIX("keel::nonfinite::attempts<3> in nonfinite::rollback, keel::spike::attempts<3> in spike::rollback", saves,
             nonfinite::rollback<10, keel::nonfinite::attempts<3>>, spike::rollback<keel::spike::attempts<3>>));
template <>
inline constexpr auto fixes<rule::N12> =
    said(FIX("a larger keel::checkpoint::keep<N>", keel::checkpoint::every<500_steps, keel::checkpoint::keep<3>>, nonfinite::rollback<600>),
         FIX("a larger keel::checkpoint::keep<N>", keel::checkpoint::every<500_steps, keel::checkpoint::keep<2>>, nonfinite::rollback<10>),
         FIX("a larger keel::checkpoint::keep<N>", keel::checkpoint::every<100_steps, keel::checkpoint::keep<3>>, spike::rollback<>),
         FIX("a larger keel::checkpoint::keep<N>", keel::checkpoint::every<100_steps, keel::checkpoint::keep<3>>, nonfinite::rollback<10>,
             spike::rollback<spike::window<128>, spike::in_a_row<10>>),
         FIX("keep_every<D> of whole intervals, shorter than the run",
             keel::checkpoint::every<300_steps, keel::checkpoint::keep_every<1500_steps>>, nonfinite::rollback<600>),
         FIX_IN_RUN("keep_every<D> of whole intervals, shorter than the run", in_2000_updates,
                    keel::checkpoint::every<500_steps, keel::checkpoint::keep_every<1500_steps>>, nonfinite::rollback<600>));
template <>
inline constexpr auto fixes<rule::N15> =
    said(FIX("nonfinite::raise with spike::ignore", asserts, keel::nonfinite::raise, keel::spike::ignore),
         FIX("remove device_assert", keel::device::cuda, nonfinite::skip<10>));
template <>
inline constexpr auto fixes<rule::N27> =
    said(FIX("finite ones: keel::spike::zscore<6.0>, window<2> and up, ratio<4.0>, loss_above and gradient_norm_above over 0",
             spike::skip<keel::spike::zscore<6.0>, spike::window<2>, spike::ratio<4.0>, spike::loss_above<20.0>, spike::gradient_norm_above<100.0>>),
         FIX("window<2> and up", spike::skip<spike::window<128>>),
         FIX("window<2> and up", spike::rollback<spike::window<2>>, keel::checkpoint::every<100_steps>),
         FIX("loss_above and gradient_norm_above over 0", spike::skip<spike::loss_above<5.0>, spike::gradient_norm_above<5.0>>));
template <>
inline constexpr auto fixes<rule::N29> =
    said(FIX("keel::spike::in_a_row<10> in spike::skip", spike::skip<keel::spike::in_a_row<10>>),
         FIX("in_a_row<1> in spike::rollback", spike::rollback<spike::in_a_row<1>>, keel::checkpoint::every<130_steps>));
template <>
inline constexpr auto fixes<rule::N30> =
    said(FIX("keel::incident::trace<3>", keel::incident::trace<3>), FIX("keel::incident::off", keel::incident::off));
template <>
inline constexpr auto fixes<rule::N28> = said(FIX("skip instead of rolling back", read_once, saves, nonfinite::skip<10>),
                                              FIX("skip instead of rolling back", read_once, saves, spike::skip<>),
                                              FIX("use data that can be reread", saves, nonfinite::rollback<10>));

template struct each_followed<rule::nonfinite_rules>;

}  // namespace fixed
