// H: timeouts. Each is allowed at one second below the next and refused where they are the same.
#include "example.hpp"

namespace judged {

using namespace keel::literals;
namespace timeout = keel::timeout;
using timeout::heartbeat;
using timeout::set;

constexpr config within(timeout::settings timeouts) {
  return {.checkpoint = keel::checkpoint::every<500_steps>::configured, .timeout = timeouts};
}
using saves = keel::checkpoint::every<500_steps>;

template <>
struct example<rule::H01>
    : recipes<recipe<set<timeout::soft<60_s>, timeout::hard<60_s>>>, recipe<set<timeout::soft<59_s>, timeout::hard<60_s>>>> {};
static_assert(breaks<rule::H01>(within({.soft = 61, .hard = 60})));
static_assert(breaks<rule::H01>(within({.hard = 60, .collective = 60})) && keeps(within({.hard = 59, .collective = 60})));
static_assert(breaks<rule::H01>(within({.soft = 60, .collective = 60})) && keeps(within({.soft = 59, .collective = 60})));
static_assert(keeps(within({.soft = 1, .hard = 2, .collective = 3})));
// A duration that is not set is in order with all.
static_assert(keeps(within({.soft = 60})) && keeps(within({.hard = 60})) && keeps(within({.collective = 60})));
static_assert(breaks<rule::H13>(within({.hard = -1})) && breaks<rule::H13>(within({.collective = -1})));

template <>
struct example<rule::H02> : recipes<recipe<set<heartbeat<30_s, 30_s>>>, recipe<set<heartbeat<29_s, 30_s>>>> {};
static_assert(breaks<rule::H02>(within({.soft = 5, .heartbeat_interval = 5})) &&
              keeps(within({.soft = 6, .heartbeat_interval = 5})));
static_assert(breaks<rule::H02>(within({.collective = 30, .heartbeat_limit = 30})) &&
              keeps(within({.collective = 31, .heartbeat_limit = 30})));
static_assert(keeps(within({.heartbeat_interval = 5})) && keeps(within({.heartbeat_limit = 30})));

template <>
struct example<rule::H03> : recipes<recipe<saves, set<timeout::force_exit<60_s>, timeout::grace<60_s>>>,
                                    recipe<saves, set<timeout::force_exit<59_s>, timeout::grace<60_s>>>> {};
static_assert(keeps(within({.force_exit = 60})) && keeps(within({.grace = 60})));

template <>
struct example<rule::H04>
    : recipes<recipe<saves, set<timeout::grace<60_s>, timeout::longest_update<20_s>, timeout::longest_save<40_s>>>,
              recipe<saves, set<timeout::grace<61_s>, timeout::longest_update<20_s>, timeout::longest_save<40_s>>>> {};
static_assert(breaks<rule::H04>(within({.grace = 20, .longest_update = 20})) &&
              keeps(within({.grace = 21, .longest_update = 20})));
static_assert(breaks<rule::H04>(within({.grace = 40, .longest_save = 40})) && keeps(within({.grace = 41, .longest_save = 40})));
static_assert(keeps(within({.longest_update = 20, .longest_save = 40})));
// What ends the run first counts.
static_assert(breaks<rule::H04>(within({.grace = 60, .force_exit = 1, .longest_update = 1})) &&
              breaks<rule::H04>(within({.grace = 60, .force_exit = 30, .longest_save = 30})));
static_assert(breaks<rule::H03, rule::H04>(within({.grace = 30, .force_exit = 60, .longest_update = 20, .longest_save = 10})));
static_assert(breaks<rule::H04>(within({.grace = 60, .force_exit = 30, .longest_update = 10, .longest_save = 20})) &&
              keeps(within({.grace = 60, .force_exit = 31, .longest_update = 10, .longest_save = 20})));
static_assert(breaks<rule::H03, rule::H04>(within({.grace = 30, .force_exit = 60, .longest_update = 30})) &&
              breaks<rule::H03>(within({.grace = 31, .force_exit = 60, .longest_update = 30})));
static_assert(keeps(within({.force_exit = 10, .longest_update = 20})));
static_assert(breaks<rule::H13>(within({.grace = 31, .force_exit = -1, .longest_update = 30})));
// However long they are, their sum overflows nothing.
static_assert(breaks<rule::H04>(within({.grace = 1, .longest_update = most, .longest_save = most})) &&
              breaks<rule::H04>(within({.grace = most, .longest_update = most, .longest_save = 1})));
static_assert(breaks<rule::H13>(within({.grace = 1, .longest_update = least, .longest_save = least})));
static_assert(breaks<rule::H04>(within({.grace = 1, .longest_update = 1})) && keeps(within({.grace = 1})));

template <>
struct example<rule::H07> : recipes<recipe<set<timeout::first_update<10_min>, timeout::collective<10_min>>>,
                                    recipe<set<timeout::first_update<599_s>, timeout::collective<10_min>>>> {};
static_assert(breaks<rule::H07>(within({.hard = 60, .first_update = 60})) && keeps(within({.hard = 61, .first_update = 60})));
static_assert(keeps(within({.first_update = 60})));
static_assert(keeps(of<set<timeout::first_update<10_min>, timeout::collective<10_min>>, keel::accept<"H07">>));

template <>
struct example<rule::H10> : recipes<recipe<set<timeout::soft<60_s>, timeout::longest_update<60_s>>>,
                                    recipe<set<timeout::soft<61_s>, timeout::longest_update<60_s>>>> {};
static_assert(breaks<rule::H10>(within({.hard = 60, .longest_update = 60})) &&
              keeps(within({.hard = 61, .longest_update = 60})));

template <>
struct example<rule::E31> : recipes<recipe<set<timeout::longest_save<60_s>, timeout::collective<60_s>>>,
                                    recipe<set<timeout::longest_save<59_s>, timeout::collective<60_s>>>> {};
static_assert(keeps(of<set<timeout::longest_save<60_s>, timeout::collective<60_s>>, keel::accept<"E31">>));

template <>
struct example<rule::S23> : recipes<recipe<set<timeout::grace<60_s>>>, recipe<saves, set<timeout::grace<60_s>>>> {};
static_assert(keeps(of<set<timeout::soft<60_s>>>));

template <>
struct example<rule::H13>
    : recipes<recipe<set<timeout::soft<keel::seconds{-1}>>>, recipe<set<timeout::soft<keel::seconds{0}>>>> {};
static_assert(breaks<rule::H13>(within({.first_update = -1})));
static_assert(breaks<rule::H13>(within({.heartbeat_interval = -1})) && breaks<rule::H13>(within({.heartbeat_limit = -1})));
static_assert(breaks<rule::H13>(within({.grace = -1})) && breaks<rule::H13>(within({.force_exit = -1})));
static_assert(breaks<rule::H13>(within({.longest_update = -1})) && breaks<rule::H13>(within({.longest_save = -1})));

template struct each_shown<rule::timeout_rules>;

}  // namespace judged
