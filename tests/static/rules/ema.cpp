// M: the moving average of the parameters.
#include "example.hpp"

namespace judged {

namespace shard = keel::shard;
using keel::ema;

// An average is element-wise, so that each rank averages its share.
static_assert(keeps(of<ema<0.999>, shard::zero<3>>));

template <>
struct example<rule::M10> : recipes<recipe<ema<1.0>>, recipe<ema<below(1.0)>>> {};
static_assert(breaks<rule::M10>(of<ema<-0.1>>) && keeps(of<ema<above(0.0)>>) && keeps(of<keel::no_ema>));
static_assert(breaks<rule::M10>(of<ema<nan>>) && breaks<rule::M10>(of<ema<0.0>>));
static_assert(breaks<rule::M10>({.ema = {.decay = 0.5}}));

template struct each_shown<rule::ema_rules>;

}  // namespace judged
