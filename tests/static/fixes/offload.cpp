// Z: what leaves the device.
#include "typed.hpp"

namespace optimizer = keel::optimizer;
using offloaded = keel::offload::optimizer;

namespace fixed {

template <>
inline constexpr auto fixes<rule::Z02> =
    said(FIX("no offload", keel::offload::none, optimizer::is<optimizer::device_only>), FIX_BESIDE("keel::adamw", "keel::adamw", offloaded));

template struct each_followed<rule::offload_rules>;

}  // namespace fixed
