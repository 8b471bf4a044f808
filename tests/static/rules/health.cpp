// Y: alarms that watch a run.
#include "example.hpp"

namespace judged {

namespace health = keel::health;
namespace objective = keel::objective;

struct loss_rises {};

template <>
struct example<rule::Y10> : recipes<recipe<health::watch<>>, recipe<health::watch<loss_rises>>> {};
static_assert(keeps(of<health::off>));

using grpo = objective::grpo<8>;
using ebft = objective::ebft<8>;
template <>
struct example<rule::Y11> : recipes<recipe<health::grpo>, recipe<health::grpo, grpo>> {};
static_assert(breaks<rule::Y11>(of<health::grpo, ebft>) && breaks<rule::Y11>(of<health::ebft, grpo>));
static_assert(breaks<rule::Y11>(of<health::ebft>) && keeps(of<health::ebft, ebft>));
static_assert(breaks<rule::Y11>(of<health::sft, grpo>) && breaks<rule::Y11>(of<health::sft, ebft>) && keeps(of<health::sft>));
static_assert(keeps(of<health::watch<loss_rises>, grpo>) && keeps(of<grpo>));

template struct each_shown<rule::health_rules>;

}  // namespace judged
