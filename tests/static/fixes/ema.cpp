// M: averages of the parameters, and quantised bases.
#include "typed.hpp"

using quantising = keel::oom::ladder<keel::oom::quantize_base, keel::oom::give_up>;

namespace fixed {

template <>
inline constexpr auto fixes<rule::M06> = said(FIX("keel::model::has<keel::model::adapters>", quantising, keel::model::has<keel::model::adapters>),
                                              FIX("remove oom::quantize_base", keel::oom::ladder<keel::oom::give_up>));
template <>
inline constexpr auto fixes<rule::M10> = said(FIX("keel::ema<0.999>", keel::ema<0.999>), FIX("keel::no_ema", keel::no_ema));

template struct each_followed<rule::ema_rules>;

}  // namespace fixed
