// M: averages of the parameters.
#include "typed.hpp"

namespace fixed {

template <>
inline constexpr auto fixes<rule::M10> = said(FIX("keel::ema<0.999>", keel::ema<0.999>), FIX("keel::no_ema and no averaged evaluation", keel::no_ema));

template struct each_followed<rule::ema_rules>;

}  // namespace fixed
