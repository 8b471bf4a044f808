// G: clipping.
#include "example.hpp"

namespace judged {

namespace clip = keel::clip;
namespace shard = keel::shard;

namespace {

struct by_element : keel::fills<keel::slot::clip> {
  static constexpr clip::settings configured{clip::kind::custom, 1.0};
};
struct by_joint_norm : keel::fills<keel::slot::clip> {
  static constexpr clip::settings configured{clip::kind::custom, 1.0, true};
};

}  // namespace

template <>
struct example<rule::G03> : recipes<recipe<by_element, shard::zero<2>>, recipe<by_joint_norm, shard::zero<2>>> {};
static_assert(breaks<rule::G03>(of<by_element, shard::zero<3>>) && keeps(of<by_element, shard::zero<1>>));
static_assert(keeps(of<clip::global_norm<1.0>, shard::zero<2>>));
// A clamp of each element is the same on a share as on the whole.
static_assert(keeps(of<clip::value<1.0>, shard::zero<1>>) && keeps(of<clip::value<1.0>, shard::zero<3>>));

template <>
struct example<rule::G05>
    : recipes<recipe<clip::adaptive<0.01>, shard::zero<2>>, recipe<clip::global_norm<0.01>, shard::zero<2>>> {};
static_assert(keeps(of<clip::adaptive<0.01>, shard::replicate>) && breaks<rule::G05>(of<clip::adaptive<0.01>, shard::zero<3>>));
// Stage 1 shares the optimizer's state and leaves gradients whole.
static_assert(keeps(of<clip::adaptive<0.01>, shard::zero<1>>));

template <>
struct example<rule::G06>
    : recipes<recipe<clip::global_norm<1.0, clip::order<1>>, shard::zero<2>>, recipe<clip::global_norm<1.0>, shard::zero<2>>> {
};
static_assert(breaks<rule::G06>(of<clip::global_norm<1.0, clip::order<clip::infinity>>, shard::zero<3>>));
static_assert(keeps(of<clip::global_norm<1.0, clip::order<1>>, shard::replicate>));
static_assert(keeps(of<clip::global_norm<1.0, clip::order<1>>, shard::zero<1>>));
static_assert(keeps(of<clip::global_norm<1.0, clip::order<2>>, shard::zero<3>>));

template <>
struct example<rule::given_twice<keel::slot::clip>> : recipes<recipe<clip::global_norm<1.0>, clip::value<1.0>>, recipe<clip::value<1.0>>> {};

template <>
struct example<rule::G11> : recipes<recipe<clip::global_norm<0.0>>, recipe<clip::global_norm<above(0.0)>>> {};
static_assert(breaks<rule::G11>(of<clip::global_norm<1.7e308>>) && keeps(of<clip::global_norm<below(1.7e308)>>));
static_assert(breaks<rule::G11>(of<clip::value<-1.0>>) && breaks<rule::G11>(of<clip::adaptive<0.0>>));
static_assert(breaks<rule::G11>(of<clip::global_norm<nan>>) && breaks<rule::G11>(of<clip::global_norm<infinity>>));
// What a policy of your own means by its limit is not keel's to judge.
static_assert(keeps({.clip = {.kind = clip::kind::custom, .limit = 0.0}}));
static_assert(keeps({.clip = {.kind = clip::kind::none, .limit = -1.0}}));

template <>
struct example<rule::G13> : recipes<recipe<clip::zscore<3.0, clip::window<1>>>, recipe<clip::zscore<3.0, clip::window<2>>>> {};
static_assert(breaks<rule::G11>(of<clip::zscore<0.0>>) && keeps(of<clip::zscore<3.0>, shard::zero<2>>));
static_assert(breaks<rule::G13>(of<clip::zscore<3.0, clip::at_most<-1.0>>>) &&
              keeps(of<clip::zscore<3.0, clip::at_most<0.0>>>));
static_assert(breaks<rule::G13>(of<clip::zscore<3.0, clip::at_most<1.7e308>>>) &&
              keeps(of<clip::zscore<3.0, clip::at_most<below(1.7e308)>>>));
static_assert(breaks<rule::G13>(of<clip::zscore<3.0, clip::at_most<nan>>>));

template <>
struct example<rule::G14>
    : recipes<recipe<clip::global_norm<1.0, clip::window<64>>>, recipe<clip::zscore<3.0, clip::window<64>>>> {};
static_assert(breaks<rule::G14>(of<clip::global_norm<1.0, clip::at_most<2.0>>>) &&
              keeps(of<clip::zscore<3.0, clip::at_most<2.0>>>));
static_assert(breaks<rule::G14>(of<clip::zscore<3.0, clip::order<1>>>) && keeps(of<clip::global_norm<1.0, clip::order<1>>>));
static_assert(breaks<rule::G14>({.clip = {.kind = clip::kind::none, .order = 1.0}}));
static_assert(breaks<rule::G14>({.clip = {.kind = clip::kind::value, .limit = 1.0, .at_most = 1.0}}));
static_assert(keeps({.clip = {.kind = clip::kind::custom, .window = 64, .at_most = 1.0, .order = 0.0}}));

template <>
struct example<rule::G15>
    : recipes<recipe<clip::global_norm<1.0, clip::order<below(1.0)>>>, recipe<clip::global_norm<1.0, clip::order<1.0>>>> {};
static_assert(breaks<rule::G15>(of<clip::global_norm<1.0, clip::order<0>>>) &&
              breaks<rule::G15>(of<clip::global_norm<1.0, clip::order<nan>>>));

template <>
struct example<rule::G16> : recipes<recipe<clip::value<1.0>, keel::optimizer::is<keel::optimizer::closure>>,
                                    recipe<keel::optimizer::is<keel::optimizer::closure>>> {};
static_assert(breaks<rule::G16>(of<clip::global_norm<keel::given>, keel::optimizer::is<keel::optimizer::closure>>));
static_assert(keeps(of<clip::global_norm<1.0, clip::order<clip::infinity>>>) &&
              keeps(of<clip::global_norm<1.0, clip::order<3>>>));
// The order may be typed as a whole number.
static_assert(clip::global_norm<1.0, clip::order<1>>::configured == clip::global_norm<1.0, clip::order<1.0>>::configured);
static_assert(clip::global_norm<1.0, clip::order<2>>::configured == clip::global_norm<1.0>::configured);
static_assert(breaks<rule::D20>(of<clip::global_norm<1.0, clip::order<1>, clip::order<3>>>));

template struct each_shown<rule::clip_rules>;

}  // namespace judged
