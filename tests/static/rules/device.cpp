// X: graph capture, and the kind of device.
#include "example.hpp"

namespace judged {

namespace data = keel::data;
namespace model = keel::model;
namespace oom = keel::oom;

using captured = keel::device::cuda_with<keel::device::graph_captured>;
template <>
struct example<rule::X03> : recipes<recipe<captured, data::is<data::ragged>>, recipe<captured, data::usual>> {};
using packed = data::is<data::packed>;
using boundaries = model::has<model::sequence_boundaries>;
static_assert(breaks<rule::X03>(of<captured, packed, boundaries>));
static_assert(keeps(of<packed, boundaries>) && keeps(of<data::is<data::ragged>>));
// A ladder has no place in a captured graph at all (O13), and two of its rungs none for a second reason.
static_assert(breaks<rule::X03, rule::O13>(of<captured, ladder<oom::halve_micro_batch, oom::give_up>>));
static_assert(
    breaks<rule::X03, rule::O13>(of<captured, ladder<oom::offload_optimizer, oom::shorten_sequence<512>, oom::give_up>>));
static_assert(breaks<rule::O13>(of<captured, ladder<oom::offload_optimizer, oom::fused_attention, oom::give_up>>));
static_assert(keeps(of<ladder<oom::halve_micro_batch, oom::shorten_sequence<512>, oom::give_up>>));

// The device of the recipe and the one that the parameters are on, where both are known.
using on = keel::device::kind;
template <>
struct example<rule::X10> {
  static constexpr verdict broken = check(in_run(of<keel::device::cpu>, {.device = on::cuda}));
  static constexpr verdict kept = check(in_run(of<keel::device::cpu>, {.device = on::cpu}));
};
static_assert(breaks<rule::X10>(in_run(of<keel::device::cuda>, {.device = on::cpu})) &&
              keeps(in_run(of<keel::device::cuda>, {.device = on::cuda})));
static_assert(breaks<rule::X10>(in_run(of<captured>, {.device = on::cpu})) &&
              keeps(in_run(of<captured>, {.device = on::cuda})));
static_assert(keeps(in_run(of<keel::device::any>, {.device = on::cuda})) &&
              keeps(in_run(of<keel::device::cpu>, {.device = on::any})) && keeps(in_run(of<>, {.device = on::any})));
static_assert(keeps({.device = keel::device::cpu::configured, .run = {.device = on::cuda}}));

template struct each_shown<rule::device_rules>;

}  // namespace judged
