// X: the profiler.
#include "example.hpp"

namespace judged {

using namespace keel::literals;
namespace profile = keel::profile;

template <>
struct example<rule::X07> : recipes<recipe<profile::every<3_steps, profile::warmup<1>, profile::active<3>>>,
                                    recipe<profile::every<4_steps, profile::warmup<1>, profile::active<3>>>> {};
static_assert(breaks<rule::X07>(of<profile::every<4_steps, profile::warmup<2>>>));
static_assert(breaks<rule::X07>(of<profile::every<4_steps, profile::active<4>>>));
static_assert(breaks<rule::X07>(of<profile::every<4_steps, profile::active<0>>>) &&
              keeps(of<profile::every<4_steps, profile::active<1>>>));
static_assert(breaks<rule::X07>(of<profile::every<4_steps, profile::warmup<-1>>>) &&
              keeps(of<profile::every<4_steps, profile::warmup<0>>>));
static_assert(keeps({.profile = {.period = 0, .warmup = -1, .active = 0}}));
static_assert(breaks<rule::X07>({.profile = {profile::kind::every, 5, most, most}}) &&
              keeps({.profile = {profile::kind::every, most, most - 3, 3}}));

template struct each_shown<rule::profile_rules>;

}  // namespace judged
