// N: non-finite values and spikes.
#include "example.hpp"

namespace judged {

using namespace keel::literals;
namespace checkpoint = keel::checkpoint;
namespace data = keel::data;
namespace nonfinite = keel::nonfinite;
namespace shard = keel::shard;
namespace spike = keel::spike;
using keel::steps;
using saves = checkpoint::every<500_steps>;

template <>
struct example<rule::N06> : recipes<recipe<nonfinite::skip<0>>, recipe<nonfinite::skip<1>>> {};
static_assert(breaks<rule::N06>(of<nonfinite::warn<0>>) && breaks<rule::N06>(of<nonfinite::skip<-1>>));
static_assert(breaks<rule::N06>(of<saves, nonfinite::rollback<0>>));
static_assert(keeps({.nonfinite = {.kind = nonfinite::kind::raise, .limit = 0}}));

template <>
struct example<rule::N09> : recipes<recipe<nonfinite::rollback<10>>, recipe<nonfinite::rollback<10>, saves>> {};
static_assert(breaks<rule::N09>(of<spike::rollback<>>) && keeps(of<spike::rollback<>, saves>));
static_assert(keeps(of<nonfinite::skip<10>, spike::skip<>>));

template <>
struct example<rule::N10> : recipes<recipe<saves, nonfinite::rollback<10, nonfinite::change_nothing>>,
                                    recipe<saves, nonfinite::rollback<10, nonfinite::reseed>>> {};
static_assert(keeps(of<saves, nonfinite::rollback<10, nonfinite::skip_data>>) &&
              keeps(of<saves, nonfinite::rollback<10, nonfinite::lower_lr>>));
static_assert(keeps(of<saves, nonfinite::skip<10>>) && keeps(of<saves, spike::rollback<>>));

template <>
struct example<rule::N11> : recipes<recipe<saves, nonfinite::rollback<10, nonfinite::attempts<0>>>,
                                    recipe<saves, nonfinite::rollback<10, nonfinite::attempts<1>>>> {};

// Two checkpoints are kept unless the recipe says otherwise, and the newest may be of the last update.
static_assert(breaks<rule::N11>(of<saves, spike::rollback<spike::attempts<0>>>) &&
              keeps(of<saves, spike::rollback<spike::attempts<1>>>));

template <>
struct example<rule::N12> : recipes<recipe<saves, nonfinite::rollback<501>>, recipe<saves, nonfinite::rollback<500>>> {};
template <long long Kept>
using keeps_a_few = checkpoint::every<500_steps, checkpoint::keep<Kept>>;
static_assert(keeps(of<keeps_a_few<3>, nonfinite::rollback<1000>>) &&
              breaks<rule::N12>(of<keeps_a_few<3>, nonfinite::rollback<1001>>));
static_assert(breaks<rule::N12>(of<keeps_a_few<1>, nonfinite::rollback<1>>) && keeps(of<keeps_a_few<1>, nonfinite::skip<1>>));
static_assert(breaks<rule::N12>(of<checkpoint::every<128_steps>, spike::rollback<>>) &&
              keeps(of<checkpoint::every<129_steps>, spike::rollback<>>));
// The patience of a rollback and the window and the row of another one add, and those of a skip do not count.
using after_64_spikes = spike::rollback<spike::window<64>>;
static_assert(breaks<rule::N12>(of<checkpoint::every<74_steps>, nonfinite::rollback<10>, after_64_spikes>) &&
              keeps(of<checkpoint::every<75_steps>, nonfinite::rollback<10>, after_64_spikes>));
static_assert(keeps(of<checkpoint::every<65_steps>, nonfinite::skip<10>, after_64_spikes>) &&
              breaks<rule::N12>(of<checkpoint::every<64_steps>, nonfinite::skip<10>, after_64_spikes>));
static_assert(keeps(of<checkpoint::every<10_steps>, nonfinite::rollback<10>, spike::skip<>>) &&
              breaks<rule::N12>(of<checkpoint::every<9_steps>, nonfinite::rollback<10>, spike::skip<>>));
static_assert(breaks<rule::N12>(of<checkpoint::every<1_steps, checkpoint::keep<10>>, nonfinite::rollback<10>>) &&
              keeps(of<checkpoint::every<1_steps, checkpoint::keep<11>>, nonfinite::rollback<10>>));
// However large the numbers are, neither side overflows.
using after_most = spike::rollback<spike::window<most>>;
static_assert(breaks<rule::N12>(of<saves, nonfinite::rollback<most>, after_most>) &&
              keeps(of<checkpoint::every<steps{most}, checkpoint::keep<most>>, nonfinite::rollback<10>>));
static_assert(keeps(of<checkpoint::every<steps{most}, checkpoint::keep<most>>, nonfinite::rollback<most>, after_most>));
// Seconds are not updates, and an interval or a number kept of nothing is S24's.
static_assert(keeps(of<checkpoint::every<1_s>, nonfinite::rollback<10>>));
static_assert(keeps(of<checkpoint::young_daly<checkpoint::mean_time_between_failures<1_s>>, nonfinite::rollback<10>>));
static_assert(breaks<rule::S24>(of<checkpoint::every<0_steps>, nonfinite::rollback<10>>));
static_assert(breaks<rule::S24>(of<checkpoint::every<500_steps, checkpoint::keep<0>>>));

using asserts = keel::device::cuda_with<keel::device::device_assert>;
// A checkpoint that stays for good must come before the run ends.
using far_apart = checkpoint::every<500_steps, checkpoint::keep<1>, checkpoint::keep_every<1'000'000_steps>>;
static_assert(keeps(of<far_apart, nonfinite::rollback<2000>>) &&
              breaks<rule::N12>(in_run(of<far_apart, nonfinite::rollback<2000>>, {.updates = 100'000})));
template <>
struct example<rule::N15> : recipes<recipe<asserts, nonfinite::skip<10>>, recipe<asserts, nonfinite::raise>> {};
static_assert(breaks<rule::N15>(of<asserts, spike::skip<>>));
static_assert(breaks<rule::N15>(of<asserts, nonfinite::warn<10>, spike::skip<>>));
static_assert(keeps(of<keel::device::cuda, nonfinite::skip<10>, spike::skip<>>));

template <>
struct example<rule::N27> : recipes<recipe<spike::skip<spike::window<1>>>, recipe<spike::skip<spike::window<2>>>> {};
static_assert(breaks<rule::N27>(of<spike::skip<spike::zscore<0.0>>>) && keeps(of<spike::skip<spike::zscore<above(0.0)>>>));
static_assert(breaks<rule::N27>(of<spike::skip<spike::zscore<1.7e308>>>) &&
              keeps(of<spike::skip<spike::zscore<below(1.7e308)>>>));
static_assert(breaks<rule::N27>(of<spike::skip<spike::zscore<nan>>>));
static_assert(breaks<rule::N27>(of<spike::rollback<spike::zscore<-1.0>>, saves>));
static_assert(keeps({.spike = {.zscore = 0.0, .window = 0}}));
static_assert(breaks<rule::N27>(of<spike::skip<spike::ratio<1.0>>>) && keeps(of<spike::skip<spike::ratio<above(1.0)>>>));
static_assert(breaks<rule::N27>(of<spike::skip<spike::ratio<-2.0>>>) && keeps(of<spike::skip<spike::ratio<0.0>>>));
static_assert(breaks<rule::N27>(of<spike::skip<spike::ratio<nan>>>) &&
              breaks<rule::N27>(of<spike::skip<spike::ratio<1.7e308>>>));
static_assert(breaks<rule::N27>(of<spike::skip<spike::loss_above<-1.0>>>) && keeps(of<spike::skip<spike::loss_above<5.0>>>));
static_assert(breaks<rule::N27>(of<spike::skip<spike::loss_above<nan>>>));
static_assert(breaks<rule::N27>(of<spike::rollback<spike::gradient_norm_above<-1.0>>, saves>) &&
              keeps(of<spike::rollback<spike::gradient_norm_above<100.0>>, saves>));

template <>
struct example<rule::N29> : recipes<recipe<spike::skip<spike::in_a_row<0>>>, recipe<spike::skip<spike::in_a_row<1>>>> {};
static_assert(breaks<rule::N29>(of<spike::rollback<spike::in_a_row<0>>, saves>) && keeps({.spike = {.limit = 0}}));

namespace incident = keel::incident;
template <>
struct example<rule::N30> : recipes<recipe<incident::trace<0>>, recipe<incident::trace<1>>> {};
static_assert(breaks<rule::N30>(of<incident::keep<0>>) && keeps(of<incident::keep<>>) && keeps(of<incident::off>));
static_assert(breaks<rule::N30>(of<incident::keep<-1>>));

using read_once = data::is<data::single_pass>;
template <>
struct example<rule::N28>
    : recipes<recipe<saves, nonfinite::rollback<10>, read_once>, recipe<saves, nonfinite::skip<10>, read_once>> {};
static_assert(breaks<rule::N28>(of<saves, spike::rollback<>, read_once>) && keeps(of<saves, spike::skip<>, read_once>));
static_assert(keeps(of<saves, nonfinite::rollback<10>, spike::rollback<>>));

template struct each_shown<rule::nonfinite_rules>;

}  // namespace judged
