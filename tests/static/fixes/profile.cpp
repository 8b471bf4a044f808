// X: the profiler.
#include "typed.hpp"

using namespace keel::literals;

namespace fixed {

template <>
inline constexpr auto fixes<rule::X07> =
    said(FIX("keel::profile::every<1000_steps, warmup<1>, active<3>>",
             keel::profile::every<1000_steps, keel::profile::warmup<1>, keel::profile::active<3>>));

template struct each_followed<rule::profile_rules>;

}  // namespace fixed
