// Z: what leaves the device.
#include "example.hpp"

namespace judged {

namespace optimizer = keel::optimizer;
using offloaded = keel::offload::optimizer;

using device_only = optimizer::is<optimizer::device_only>;
template <>
struct example<rule::Z02> : recipes<recipe<offloaded, device_only>, recipe<offloaded>> {};
static_assert(keeps(of<device_only>));

template struct each_shown<rule::offload_rules>;

}  // namespace judged
