// O: the out-of-memory ladder. What its rungs make of the other rules is in reachable.cpp.
#include <utility>

#include "example.hpp"

namespace judged {

namespace oom = keel::oom;
using keel::accumulate;
using keel::micro_batch;
using keel::oom::enable_recompute;
using keel::oom::fused_attention;
using keel::oom::give_up;
using keel::oom::halve_micro_batch;
using keel::oom::offload_optimizer;
using keel::oom::quantize_base;
using keel::oom::shorten_sequence;
using reentrant = keel::recompute::reentrant;
using non_reentrant = keel::recompute::non_reentrant;
using replicate = keel::shard::replicate;
using adapters = keel::model::has<keel::model::adapters>;

namespace {

struct drop_the_cache {
  static constexpr oom::rung_settings rung{.kind = oom::rung_kind::custom};
};
struct drop_it_alone {
  static constexpr oom::rung_settings rung{.kind = oom::rung_kind::custom, .agreed = false};
};
struct half_the_batch {
  static constexpr oom::rung_settings rung{.kind = oom::rung_kind::custom, .keeps_effective_batch = false};
};
template <long long Length>
struct quantize_by_hand {
  static constexpr oom::rung_settings rung{
      .kind = oom::rung_kind::quantize_base, .disturbance = oom::disturbance::semantic, .length = Length};
};
struct exit_by_oneself {
  static constexpr oom::rung_settings rung{.kind = oom::rung_kind::custom, .disturbance = oom::disturbance::terminal};
};

}  // namespace

// keel's own ladder from end to end.
static_assert(keeps(of<ladder<halve_micro_batch, enable_recompute<non_reentrant>, offload_optimizer, fused_attention,
                              quantize_base, shorten_sequence<512>, give_up>,
                       adapters>));

template <>
struct example<rule::O01>
    : recipes<recipe<replicate, ladder<drop_it_alone, give_up>>, recipe<replicate, ladder<drop_the_cache, give_up>>> {};
static_assert(keeps(of<ladder<drop_it_alone, give_up>>));
// What counts as several ranks: a shard policy, a recipe that is for them, a run that has them.
static_assert(breaks<rule::O01, rule::W01>(of<ladder<drop_it_alone, give_up>, keel::world::size<2>>) &&
              keeps(of<ladder<drop_it_alone, give_up>, keel::world::size<1>>));
static_assert(breaks<rule::O01, rule::W01>(in_run(of<ladder<drop_the_cache, drop_it_alone, give_up>>, {.world_size = 2})) &&
              keeps(in_run(of<ladder<drop_the_cache, drop_it_alone, give_up>>, {.world_size = 1})));
static_assert(keeps(of<replicate, ladder<halve_micro_batch, give_up>>) && keeps(of<replicate>));

template <>
struct example<rule::O02> : recipes<recipe<ladder<half_the_batch, give_up>>, recipe<ladder<drop_the_cache, give_up>>> {};
static_assert(breaks<rule::O02>(of<ladder<halve_micro_batch, half_the_batch, give_up>>));

template <>
struct example<rule::O05> : recipes<recipe<ladder<halve_micro_batch>>, recipe<ladder<halve_micro_batch, give_up>>> {};
static_assert(breaks<rule::O05>(of<ladder<>>) && keeps(of<oom::raise>));
static_assert(keeps(of<ladder<give_up>>) && keeps(of<ladder<halve_micro_batch, exit_by_oneself>>));
static_assert(breaks<rule::O05, rule::O06>(of<ladder<give_up, halve_micro_batch>>));

template <>
struct example<rule::O06> : recipes<recipe<ladder<fused_attention, halve_micro_batch, give_up>>,
                                    recipe<ladder<halve_micro_batch, fused_attention, give_up>>> {};
static_assert(breaks<rule::O06>(of<ladder<offload_optimizer, quantize_base, fused_attention, give_up>, adapters>) &&
              keeps(of<ladder<offload_optimizer, fused_attention, quantize_base, give_up>, adapters>));
static_assert(breaks<rule::O06>(of<ladder<shorten_sequence<512>, fused_attention, give_up>>));
static_assert(breaks<rule::O06>(of<ladder<exit_by_oneself, fused_attention, give_up>>));
// The order of those that disturb alike is free.
static_assert(keeps(of<ladder<offload_optimizer, enable_recompute<reentrant>, halve_micro_batch, give_up>>));
static_assert(keeps(of<ladder<shorten_sequence<512>, quantize_base, give_up>, adapters>));

// A rung that is there twice ..
template <>
struct example<rule::O08>
    : recipes<recipe<ladder<offload_optimizer, offload_optimizer, give_up>>, recipe<ladder<offload_optimizer, give_up>>> {};
static_assert(breaks<rule::O08>(of<ladder<halve_micro_batch, offload_optimizer, halve_micro_batch, give_up>>));
static_assert(breaks<rule::O08>(of<ladder<enable_recompute<reentrant>, enable_recompute<non_reentrant>, give_up>>));
static_assert(breaks<rule::O08>(of<ladder<fused_attention, fused_attention, give_up>>));
static_assert(breaks<rule::O08>(of<ladder<quantize_base, quantize_base, give_up>, adapters>));
static_assert(breaks<rule::O08>(of<ladder<quantize_by_hand<512>, quantize_by_hand<256>, give_up>, adapters>));
static_assert(breaks<rule::O08>(of<ladder<give_up, give_up>>));
static_assert(keeps(of<ladder<drop_the_cache, drop_the_cache, give_up>>));
// .. unless it is a shorter length than any before.
static_assert(keeps(of<ladder<shorten_sequence<512>, shorten_sequence<511>, give_up>>) &&
              breaks<rule::O08>(of<ladder<shorten_sequence<512>, shorten_sequence<512>, give_up>>));
static_assert(keeps(of<ladder<shorten_sequence<512>, shorten_sequence<256>, shorten_sequence<128>, give_up>>));
static_assert(breaks<rule::O08>(of<ladder<shorten_sequence<512>, shorten_sequence<256>, shorten_sequence<300>, give_up>>));
static_assert(breaks<rule::O08>(of<ladder<shorten_sequence<256>, shorten_sequence<512>, give_up>>));
// .. or no shorter than the data says that its rows are.
static_assert(breaks<rule::O08>(of<ladder<shorten_sequence<512>, give_up>, keel::batch_guard::check<keel::batch_guard::longest<512>>>) &&
              keeps(of<ladder<shorten_sequence<512>, give_up>, keel::batch_guard::check<keel::batch_guard::longest<513>>>));
// .. or that changes nothing.
static_assert(breaks<rule::O08>(of<accumulate<1, micro_batch<1>>, ladder<halve_micro_batch, give_up>>) &&
              keeps(of<accumulate<1, micro_batch<2>>, ladder<halve_micro_batch, give_up>>));
static_assert(keeps(of<accumulate<1, micro_batch<1>>, ladder<offload_optimizer, give_up>>));
static_assert(breaks<rule::O08>(of<ladder<enable_recompute<keel::recompute::none>, give_up>>));
static_assert(breaks<rule::O08>(of<reentrant, ladder<enable_recompute<reentrant>, give_up>>) &&
              breaks<rule::O08>(of<reentrant, ladder<enable_recompute<non_reentrant>, give_up>>));
static_assert(keeps(of<reentrant, ladder<offload_optimizer, give_up>>));
static_assert(breaks<rule::O08>(of<keel::offload::optimizer, ladder<offload_optimizer, give_up>>) &&
              keeps(of<keel::offload::optimizer, ladder<halve_micro_batch, give_up>>));
static_assert(breaks<rule::O08>(of<keel::attention::fused, ladder<fused_attention, give_up>>) &&
              keeps(of<keel::attention::fused, ladder<halve_micro_batch, give_up>>));
static_assert(breaks<rule::O08>(of<keel::attention::fused, ladder<halve_micro_batch, fused_attention, give_up>>));

using batch_norm = keel::model::has<keel::model::batch_norm>;
template <>
struct example<rule::O10>
    : recipes<recipe<batch_norm, ladder<halve_micro_batch, give_up>>, recipe<batch_norm, ladder<offload_optimizer, give_up>>> {
};
static_assert(breaks<rule::O10>(of<batch_norm, ladder<offload_optimizer, halve_micro_batch, give_up>>));
static_assert(keeps(of<ladder<halve_micro_batch, give_up>>) && keeps(of<batch_norm>));
static_assert(keeps(of<batch_norm, ladder<halve_micro_batch, give_up>, keel::accept<"O10">>));

using groups = keel::objective::grpo<8>;
using halving = ladder<halve_micro_batch, give_up>;
template <>
struct example<rule::O15> : recipes<recipe<groups, halving, accumulate<1, micro_batch<24>>>,
                                    recipe<groups, halving, accumulate<1, micro_batch<32>>>> {};
static_assert(breaks<rule::O15>(of<groups, halving, accumulate<1, micro_batch<8>>>) &&
              keeps(of<groups, halving, accumulate<1, micro_batch<16>>>));
static_assert(breaks<rule::O15>(
    of<keel::objective::ebft<8>, ladder<offload_optimizer, halve_micro_batch, give_up>, accumulate<1, micro_batch<8>>>));
static_assert(keeps(of<groups, accumulate<1, micro_batch<8>>>) &&
              keeps(of<groups, ladder<offload_optimizer, give_up>, accumulate<1, micro_batch<8>>>));
static_assert(keeps(of<halving, accumulate<1, micro_batch<3>>>));
// Whole groups stay together by the data's own doing.
using grouped = keel::data::is<keel::data::grouped>;
static_assert(keeps(of<groups, grouped, halving, accumulate<1, micro_batch<8>>>) &&
              keeps(of<groups, grouped, halving, accumulate<1, micro_batch<24>>>));
// However large a group is, two of them overflow nothing.
static_assert(breaks<rule::O15>(of<keel::objective::grpo<(1LL << 62)>, halving, accumulate<1, micro_batch<(1LL << 62)>>>));
static_assert(breaks<rule::B12>(of<keel::objective::grpo<most>, halving, accumulate<1, micro_batch<8>>>));
static_assert(keeps({.accumulate = {.micro_batch = 3}, .oom = halving::configured, .objective = {.group = 8}}));
static_assert(breaks<rule::O15>(of<keel::objective::grpo<2>, halving, accumulate<1, micro_batch<2>>>));
static_assert(breaks<rule::O08, rule::B12>(of<groups, halving, accumulate<1, micro_batch<1>>>));
// A micro-batch that cuts groups already has none to keep whole.
static_assert(keeps(of<groups, halving, accumulate<4, micro_batch<2>>>) && keeps(of<groups, halving, accumulate<2, micro_batch<4>>>));
// Without a group or a batch to speak of another rule speaks.
static_assert(breaks<rule::B11>(of<keel::objective::grpo<1>, halving, accumulate<1, micro_batch<3>>>));
static_assert(breaks<rule::B11>(of<keel::objective::grpo<0>, halving, accumulate<1, micro_batch<3>>>));
static_assert(breaks<rule::B15>(of<groups, halving>));
static_assert(breaks<rule::B21>(of<groups, halving, accumulate<1, micro_batch<-8>>>));

// The longest ladder that there is has its last rung in the last place.
template <class Rung>
using longest = ladder<Rung, Rung, Rung, Rung, Rung, Rung, Rung, Rung, Rung, Rung, Rung, Rung, Rung, Rung, Rung, give_up>;
static_assert(keeps(of<longest<drop_the_cache>, replicate, batch_norm, groups, accumulate<1, micro_batch<8>>>));
static_assert(of<longest<drop_the_cache>>.oom.count == oom::max_rungs);

using profiled = keel::profile::every<keel::steps{1000}>;
using halving = ladder<halve_micro_batch, give_up>;
template <>
struct example<rule::O11> : recipes<recipe<profiled, halving>, recipe<profiled, ladder<offload_optimizer, give_up>>> {};
static_assert(keeps(of<halving>) && keeps(of<profiled, halving, keel::accept<"O11">>));

template <>
struct example<rule::O21>
    : recipes<recipe<ladder<shorten_sequence<0>, give_up>>, recipe<ladder<shorten_sequence<1>, give_up>>> {};
static_assert(breaks<rule::O21>(of<ladder<offload_optimizer, shorten_sequence<-512>, give_up>>));

template <long long Updates>
using climbs = oom::release_after<keel::steps{Updates}>;
template <>
struct example<rule::O22> : recipes<recipe<ladder<halve_micro_batch, give_up, climbs<0>>>,
                                    recipe<ladder<halve_micro_batch, give_up, climbs<1>>>> {};
static_assert(breaks<rule::O22>(of<ladder<halve_micro_batch, give_up, climbs<-1>>>));
static_assert(keeps(of<ladder<fused_attention, shorten_sequence<512>, give_up, climbs<500>>>));
// What changes the experiment, and what the program takes by itself, stays.
static_assert(breaks<rule::O22>(of<ladder<shorten_sequence<512>, give_up, climbs<500>>>));
static_assert(breaks<rule::O22>(of<ladder<drop_the_cache, give_up, climbs<500>>>));
static_assert(breaks<rule::O22>(of<ladder<give_up, climbs<500>>>));
static_assert(keeps({.oom = keel::oom::settings{.release_after = -1}}));

// A policy among the rungs, and a rung that turns on what is no recompute.
template <>
struct example<rule::O23> : recipes<recipe<ladder<halve_micro_batch, reentrant, give_up>>,
                                    recipe<ladder<halve_micro_batch, enable_recompute<reentrant>, give_up>>> {};
static_assert(breaks<rule::O23>(of<ladder<enable_recompute<keel::precision::bf16>, give_up>>));
static_assert(breaks<rule::O23>(of<ladder<enable_recompute<int>, give_up>>) && breaks<rule::O23>(of<ladder<int, give_up>>));
// More rungs than a ladder holds.
template <int>
struct custom_rung : drop_the_cache {};
template <int... Rung>
constexpr config const& of_so_many(std::integer_sequence<int, Rung...>) {
  return of<ladder<custom_rung<Rung>..., give_up>>;
}
static_assert(keeps(of_so_many(std::make_integer_sequence<int, oom::max_rungs - 1>{})));
static_assert(check(of_so_many(std::make_integer_sequence<int, oom::max_rungs>{})).has("O23"));

template <>
struct example<rule::M06>
    : recipes<recipe<ladder<oom::quantize_base, oom::give_up>>, recipe<ladder<oom::quantize_base, oom::give_up>, adapters>> {};
static_assert(breaks<rule::M06>(of<ladder<oom::quantize_base, oom::give_up>, keel::model::partly_frozen>));
static_assert(breaks<rule::M06>(of<ladder<oom::offload_optimizer, oom::quantize_base, oom::give_up>>));
static_assert(keeps(of<ladder<oom::offload_optimizer, oom::give_up>>));

template struct each_shown<rule::oom_rules>;

}  // namespace judged
