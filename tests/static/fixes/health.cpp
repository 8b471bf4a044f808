// Y: alarms.
#include "typed.hpp"

namespace {
struct loss_rises {};
}  // namespace

namespace fixed {

template <>
inline constexpr auto fixes<rule::Y10> = said(FIX("name its alarms", keel::health::watch<loss_rises>), FIX("keel::health::off", keel::health::off));
template <>
inline constexpr auto fixes<rule::Y11> =
    said(FIX("keel::health::sft with keel::objective::supervised", keel::health::sft, keel::objective::supervised),
         FIX("grpo with grpo", keel::health::grpo, keel::objective::grpo<8>), FIX("ebft with ebft", keel::health::ebft, keel::objective::ebft<8>));

template struct each_followed<rule::health_rules>;

}  // namespace fixed
