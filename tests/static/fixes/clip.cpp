// G: clipping.
#include "typed.hpp"

namespace clip = keel::clip;
namespace shard = keel::shard;

namespace {
struct by_joint_norm : keel::fills<keel::slot::clip> {
  static constexpr keel::clip::settings configured{.kind = keel::clip::kind::custom, .by_joint_norm = true};
};
}  // namespace

namespace fixed {

template <>
inline constexpr auto fixes<rule::G03> = said(FIX("keel::clip::global_norm<1.0>", keel::clip::global_norm<1.0>, shard::zero<2>),
                                              FIX("by_joint_norm = true in its settings", by_joint_norm, shard::zero<2>));
template <>
inline constexpr auto fixes<rule::G05> = said(FIX("keel::clip::global_norm<1.0>", keel::clip::global_norm<1.0>, shard::zero<2>),
                                              FIX("keel::shard::replicate", clip::adaptive<0.01>, keel::shard::replicate));
template <>
inline constexpr auto fixes<rule::G06> =
    said(FIX("remove keel::clip::order", clip::global_norm<1.0>, shard::zero<1>),
         FIX("keel::shard::replicate", clip::global_norm<1.0, clip::order<1>>, keel::shard::replicate));
template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::clip>> =
    said(FIX("keep one of keel::clip::{none, global_norm, value, adaptive, zscore}", keel::clip::none),
         FIX("keep one of keel::clip::", keel::clip::global_norm<1.0>), FIX("keep one of keel::clip::", keel::clip::value<1.0>),
         FIX("keep one of keel::clip::", keel::clip::adaptive<0.01>), FIX("keep one of keel::clip::", keel::clip::zscore<3.0>));
template <>
inline constexpr auto fixes<rule::G11> =
    said(FIX("keel::clip::global_norm<1.0>", keel::clip::global_norm<1.0>), FIX("keel::clip::none", keel::clip::none));
template <>
inline constexpr auto fixes<rule::G13> = said(FIX("keel::clip::window<128>, keel::clip::at_most<1.0>",
                                                  clip::zscore<3.0, keel::clip::window<128>, keel::clip::at_most<1.0>>));
template <>
inline constexpr auto fixes<rule::G14> =
    said(FIX("remove the option", clip::global_norm<1.0>), FIX("use that policy", clip::zscore<3.0, clip::window<64>>),
         FIX("use that policy", clip::zscore<3.0, clip::at_most<1.0>>), FIX("use that policy", clip::global_norm<1.0, clip::order<1>>));
template <>
inline constexpr auto fixes<rule::G16> =
    said(FIX("keel::clip::none", keel::clip::none, keel::optimizer::is<keel::optimizer::closure>),
         FIX_BESIDE("torch::optim::AdamW", "torch::optim::AdamW", keel::clip::global_norm<1.0>, keel::optimizer::usual));
template <>
inline constexpr auto fixes<rule::G15> =
    said(FIX("keel::clip::order<1>", clip::global_norm<1.0, keel::clip::order<1>>),
         FIX("keel::clip::order<keel::clip::infinity>", clip::global_norm<1.0, keel::clip::order<keel::clip::infinity>>),
         FIX("no order, which is 2", clip::global_norm<1.0>));

template struct each_followed<rule::clip_rules>;

// Under sanitizers g++ 12 takes the text, which is put together, for no constant.
#ifndef __SANITIZE_ADDRESS__
template struct each_followed<rule::list<rule::given_twice<keel::slot::clip>>>;
#endif

}  // namespace fixed
