// X: the kind of device.
#include "example.hpp"

namespace judged {

// The device of the recipe and the one that the parameters are on, where both are known.
using on = keel::device::kind;
template <>
struct example<rule::X10> {
  static constexpr verdict broken = check(in_run(of<keel::device::cpu>, {.device = on::cuda}));
  static constexpr verdict kept = check(in_run(of<keel::device::cpu>, {.device = on::cpu}));
};
static_assert(breaks<rule::X10>(in_run(of<keel::device::cuda>, {.device = on::cpu})) &&
              keeps(in_run(of<keel::device::cuda>, {.device = on::cuda})));
static_assert(keeps(in_run(of<keel::device::any>, {.device = on::cuda})) &&
              keeps(in_run(of<keel::device::cpu>, {.device = on::any})) && keeps(in_run(of<>, {.device = on::any})));
static_assert(keeps({.device = keel::device::cpu::configured, .run = {.device = on::cuda}}));

template struct each_shown<rule::device_rules>;

}  // namespace judged
