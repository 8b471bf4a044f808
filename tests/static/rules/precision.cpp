// P: precision and loss scale.
#include "example.hpp"

namespace judged {

using namespace keel::literals;
namespace loss_scale = keel::loss_scale;
namespace model = keel::model;
namespace nonfinite = keel::nonfinite;
namespace optimizer = keel::optimizer;
using keel::accumulate;
using keel::precision::bf16;
using keel::precision::fp16;
using loss_scale::dynamic;
using loss_scale::fixed;

template <loss_scale::option... Options>
inline constexpr config const& scaled = of<fp16, dynamic<Options...>>;

using half = model::has<model::half_parameters>;
template <>
struct example<rule::P01> : recipes<recipe<fp16>, recipe<fp16, dynamic<>>> {};
static_assert(keeps(of<fp16, fixed<1.0>>));
static_assert(keeps(of<bf16>) && keeps(of<>));
static_assert(breaks<rule::P01, rule::P04>(of<fp16, half>));
static_assert(keeps(of<model::has<model::bfloat16_parameters>>));

template <>
struct example<rule::P02> : recipes<recipe<bf16, dynamic<>>, recipe<fp16, dynamic<>>> {};
static_assert(breaks<rule::P02>(of<bf16, fixed<1.0>>));
static_assert(breaks<rule::P02>(of<dynamic<>>) && breaks<rule::P02>(of<fixed<1.0>>));

template <>
struct example<rule::given_twice<keel::slot::precision>> : recipes<recipe<bf16, keel::precision::fp32>, recipe<bf16>> {};

template <>
struct example<rule::P04> : recipes<recipe<fp16, dynamic<>, half>, recipe<fp16, dynamic<>>> {};
static_assert(breaks<rule::P04>(of<fp16, fixed<1.0>, half>));
static_assert(breaks<rule::P04, rule::P02>(of<half, dynamic<>>));
static_assert(breaks<rule::P04>(of<half>) && breaks<rule::P04>(of<bf16, half>));

using bfloat16 = model::has<model::bfloat16_parameters>;
template <>
struct example<rule::P06> : recipes<recipe<accumulate<2>, bfloat16>, recipe<accumulate<1>, bfloat16>> {};
static_assert(keeps(of<accumulate<2>>) && breaks<rule::P04>(of<accumulate<2>, half>));
static_assert(keeps(of<accumulate<2>, bfloat16, keel::accept<"P06">>));

template <>
struct example<rule::P08> : recipes<recipe<fp16, fixed<0.0>>, recipe<fp16, fixed<1.0>>> {};
static_assert(breaks<rule::P08>(of<fp16, fixed<below(1.2e-38)>>) && keeps(of<fp16, fixed<1.2e-38>>));
static_assert(breaks<rule::P08>(of<fp16, fixed<3.4e38>>) && keeps(of<fp16, fixed<below(3.4e38)>>));
static_assert(breaks<rule::P08>(of<fp16, fixed<-1.0>>));
static_assert(breaks<rule::P08>(of<fp16, fixed<nan>>) && breaks<rule::P08>(of<fp16, fixed<infinity>>));
static_assert(breaks<rule::P08>(scaled<loss_scale::initial<3.4e38>>));
static_assert(keeps({.loss_scale = {.initial = 0.0}}));

template <>
struct example<rule::P09>
    : recipes<recipe<fp16, dynamic<loss_scale::growth<1.0>>>, recipe<fp16, dynamic<loss_scale::growth<above(1.0)>>>> {};
static_assert(breaks<rule::P09>(scaled<loss_scale::growth<3.4e38>>) && keeps(scaled<loss_scale::growth<below(3.4e38)>>));
static_assert(breaks<rule::P09>(scaled<loss_scale::growth<nan>>));
static_assert(breaks<rule::P09>(scaled<loss_scale::backoff<0.0>>) && keeps(scaled<loss_scale::backoff<above(0.0)>>));
static_assert(breaks<rule::P09>(scaled<loss_scale::backoff<1.0>>) && keeps(scaled<loss_scale::backoff<below(1.0)>>));
static_assert(breaks<rule::P09>(scaled<loss_scale::backoff<nan>>));
static_assert(breaks<rule::P09>(scaled<loss_scale::growth_interval<0>>) && keeps(scaled<loss_scale::growth_interval<1>>));
static_assert(breaks<rule::P09>(scaled<loss_scale::hysteresis<0>>) && keeps(scaled<loss_scale::hysteresis<1>>));
static_assert(breaks<rule::P09>(scaled<loss_scale::initial<below(2.0)>, loss_scale::floor<2.0>>) &&
              keeps(scaled<loss_scale::initial<2.0>, loss_scale::floor<2.0>>));
// A scale that stays has neither.
static_assert(keeps(
    {.precision = fp16::configured,
     .loss_scale = {.kind = loss_scale::kind::fixed, .growth = 1.0, .growth_interval = 0, .hysteresis = 0, .floor = 2.0}}));
static_assert(keeps({.loss_scale = {.growth = 1.0}}));

template <>
struct example<rule::P10>
    : recipes<recipe<fp16, dynamic<loss_scale::at_floor_continue>>, recipe<fp16, dynamic<loss_scale::at_floor_raise>>> {};
static_assert(breaks<rule::P10>(scaled<loss_scale::floor<0.0>>) && keeps(scaled<loss_scale::floor<0.5>>));
static_assert(breaks<rule::P10>(scaled<loss_scale::floor<-1.0>>));
static_assert(keeps({.precision = fp16::configured,
                     .loss_scale = {.kind = loss_scale::kind::fixed, .floor = 0.0, .raise_at_floor = false}}));

using with_closure = optimizer::is<optimizer::closure>;
template <>
struct example<rule::P11> : recipes<recipe<fp16, dynamic<>, with_closure>, recipe<fp16, dynamic<>>> {};
static_assert(breaks<rule::P11>(of<fp16, fixed<1.0>, with_closure>));
static_assert(keeps(of<with_closure>) && keeps(of<bf16, with_closure>));

using that_unscales = optimizer::is<optimizer::unscales>;
using clip = keel::clip::global_norm<1.0>;
template <>
struct example<rule::P12> : recipes<recipe<fp16, dynamic<>, that_unscales>, recipe<fp16, dynamic<>>> {};
static_assert(breaks<rule::P12>(of<fp16, fixed<1.0>, that_unscales>));
static_assert(keeps(of<that_unscales>) && keeps(of<bf16, that_unscales>) && keeps(of<fp16, fixed<1.0>>));
// It unscales twice whether or not something is clipped.
static_assert(breaks<rule::P12>(of<fp16, dynamic<>, clip, that_unscales>) && keeps(of<clip, that_unscales>));

// A CPU has fp16 kernels from LibTorch 2 on, so that only the constructor knows.
template <>
struct example<rule::P14> {
  static constexpr verdict broken = check(in_run(of<fp16, dynamic<>, keel::device::cpu>, {.half_kernels = false}));
  static constexpr verdict kept = violations<recipe<fp16, dynamic<>, keel::device::cpu>>;
};
static_assert(keeps(of<bf16, keel::device::cpu>) && keeps(of<keel::device::cpu>));
static_assert(breaks<rule::P14>(in_run(of<fp16, dynamic<>>, {.half_kernels = false})));
static_assert(keeps(in_run(of<fp16, dynamic<>>, {.half_kernels = true})));
static_assert(keeps(in_run(of<bf16>, {.half_kernels = false})));
// What the run says counts more than what the recipe says, and nothing is held against a run that nobody knows.
static_assert(keeps(in_run(of<fp16, dynamic<>, keel::device::cpu>, {.half_kernels = true})));
static_assert(keeps({.precision = fp16::configured, .loss_scale = dynamic<>::configured, .run = {.half_kernels = false}}));

template <>
struct example<rule::P15> {
  static constexpr verdict broken = check(in_run(of<bf16>, {.bfloat16_kernels = false}));
  static constexpr verdict kept = check(in_run(of<bf16>, {.bfloat16_kernels = true}));
};
static_assert(keeps(in_run(of<fp16, dynamic<>>, {.bfloat16_kernels = false})) &&
              keeps(in_run(of<>, {.bfloat16_kernels = false})));
static_assert(keeps({.precision = bf16::configured, .run = {.bfloat16_kernels = false}}));

template struct each_shown<rule::precision_rules>;

}  // namespace judged
