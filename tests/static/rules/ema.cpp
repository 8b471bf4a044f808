// M: the moving average of the parameters, and quantised bases.
#include "example.hpp"

namespace judged {

namespace oom = keel::oom;
namespace shard = keel::shard;
using keel::ema;

// An average is element-wise, so that each rank averages its share.
static_assert(keeps(of<ema<0.999>, shard::zero<3>>));

using adapters = keel::model::has<keel::model::adapters>;
template <>
struct example<rule::M06>
    : recipes<recipe<ladder<oom::quantize_base, oom::give_up>>, recipe<ladder<oom::quantize_base, oom::give_up>, adapters>> {};
static_assert(breaks<rule::M06>(of<ladder<oom::quantize_base, oom::give_up>, keel::model::partly_frozen>));
static_assert(breaks<rule::M06>(of<ladder<oom::offload_optimizer, oom::quantize_base, oom::give_up>>));
static_assert(keeps(of<ladder<oom::offload_optimizer, oom::give_up>>));

template <>
struct example<rule::M10> : recipes<recipe<ema<1.0>>, recipe<ema<below(1.0)>>> {};
static_assert(breaks<rule::M10>(of<ema<-0.1>>) && keeps(of<ema<above(0.0)>>) && keeps(of<keel::no_ema>));
static_assert(breaks<rule::M10>(of<ema<nan>>) && breaks<rule::M10>(of<ema<0.0>>));
static_assert(breaks<rule::M10>({.ema = {.decay = 0.5}}));

template struct each_shown<rule::ema_rules>;

}  // namespace judged
