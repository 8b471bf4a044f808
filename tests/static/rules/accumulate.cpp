// B: accumulation, the algebra of batch sizes, groups of rows.
#include "example.hpp"

namespace judged {

namespace data = keel::data;
namespace objective = keel::objective;
namespace shard = keel::shard;
using keel::accumulate;
using keel::global_batch;
using keel::micro_batch;
using keel::reduce_once;
using shard::replicate;

using halving = ladder<keel::oom::halve_micro_batch, keel::oom::give_up>;

template <>
struct example<rule::B01>
    : recipes<recipe<accumulate<4, micro_batch<2>, global_batch<9>>>, recipe<accumulate<4, micro_batch<2>, global_batch<8>>>> {
};
template <long long Rows>
using rows = accumulate<4, micro_batch<2>, global_batch<Rows>>;
static_assert(keeps(of<accumulate<4, micro_batch<2>>>));
// One process has one rank.
static_assert(breaks<rule::B01>(of<rows<16>>));
static_assert(breaks<rule::B01>(of<accumulate<1, micro_batch<2>, global_batch<3>>>));
static_assert(breaks<rule::B01>(of<accumulate<4, micro_batch<1>, global_batch<8>>>));
// How many ranks share the rows is not known yet, so a multiple will do.
static_assert(keeps(of<rows<8>, replicate>) && keeps(of<rows<16>, replicate>) && breaks<rule::B01>(of<rows<12>, replicate>));
// The run knows.
static_assert(keeps(in_run(of<rows<16>, replicate>, {.world_size = 2})));
static_assert(breaks<rule::B01>(in_run(of<rows<16>, replicate>, {.world_size = 1})) &&
              breaks<rule::B01>(in_run(of<rows<16>, replicate>, {.world_size = 4})));
static_assert(breaks<rule::W01>(in_run(of<rows<16>>, {.world_size = 2})) &&
              breaks<rule::W01, rule::B01>(in_run(of<rows<8>>, {.world_size = 2})));
// A run of no ranks is none to divide by.
static_assert(keeps(in_run(of<rows<8>, replicate>, {.world_size = 0})) &&
              breaks<rule::B01>(in_run(of<rows<16>, replicate>, {.world_size = -2})));
// Or the recipe does.
using pair = keel::world::size<2>;
static_assert(keeps(of<rows<16>, replicate, pair>));
static_assert(breaks<rule::B01>(of<rows<8>, replicate, pair>) && breaks<rule::B01>(of<rows<32>, replicate, pair>));
static_assert(keeps(of<rows<8>, keel::world::size<1>>) && breaks<rule::B01>(of<rows<16>, keel::world::size<1>>));
// Where they differ, the run is right.
static_assert(breaks<rule::W01>(in_run(of<rows<32>, replicate, pair>, {.world_size = 4})));
static_assert(breaks<rule::W01, rule::B01>(in_run(of<rows<16>, replicate, pair>, {.world_size = 4})));
// A world of nobody says nothing about the rows.
static_assert(breaks<rule::W01>(of<rows<16>, keel::world::size<0>>) && breaks<rule::W01>(of<rows<16>, keel::world::size<-1>>));
// Of a micro-batch that is not declared there is one row at least.
static_assert(keeps(of<accumulate<4, global_batch<8>>>) && breaks<rule::B01>(of<accumulate<4, global_batch<10>>>));
static_assert(keeps(in_run(of<accumulate<4, global_batch<8>>, replicate>, {.world_size = 2})) &&
              breaks<rule::B01>(in_run(of<accumulate<4, global_batch<12>>, replicate>, {.world_size = 2})));
static_assert(keeps(of<accumulate<4, global_batch<8>>, replicate, pair>) &&
              breaks<rule::B01>(of<accumulate<4, global_batch<12>>, replicate, pair>));
// However large the numbers are, the product of none of them overflows.
static_assert(breaks<rule::B01>(of<accumulate<most, micro_batch<most>, global_batch<8>>>) &&
              breaks<rule::B01>(of<accumulate<most, micro_batch<most>, global_batch<8>>, replicate>));
static_assert(breaks<rule::B01>(in_run(of<accumulate<1, micro_batch<most>, global_batch<8>>, replicate>,
                                       {.world_size = most})) &&
              breaks<rule::B01>(in_run(of<accumulate<most, global_batch<8>>, replicate>, {.world_size = most})));

// The product is asked for only of numbers that can be a batch.
template <>
struct example<rule::B21> : recipes<recipe<accumulate<0>>, recipe<accumulate<1>>> {};
static_assert(breaks<rule::B21>(of<accumulate<0, micro_batch<2>, global_batch<8>>>));
static_assert(breaks<rule::B21>(of<accumulate<-1>>));
static_assert(breaks<rule::B21>(of<accumulate<1, micro_batch<-1>>>));
static_assert(breaks<rule::B21>(of<accumulate<4, micro_batch<-3>, global_batch<8>>>));
static_assert(breaks<rule::B21>(of<accumulate<4, global_batch<-8>>>));

template <>
struct example<rule::B03>
    : recipes<recipe<accumulate<2, reduce_once>, shard::zero<2>>, recipe<accumulate<2, reduce_once>, shard::zero<1>>> {};
static_assert(breaks<rule::B03>(of<accumulate<2, reduce_once>, shard::zero<3>>));
static_assert(keeps(of<accumulate<2>, shard::zero<2>>));
static_assert(breaks<rule::P20>(of<accumulate<1, reduce_once>, shard::zero<2>>));

using ragged = data::is<data::ragged>;
template <>
struct example<rule::B06> : recipes<recipe<accumulate<2>, ragged>, recipe<accumulate<1>, ragged>> {};
static_assert(keeps(of<accumulate<2>, data::is<data::ragged, data::token_weighted>>));
static_assert(keeps(of<accumulate<2>>));
static_assert(keeps(of<accumulate<2>, ragged, keel::accept<"B06">>));
// Ranks that each hold one micro-batch are a mean of means too.
static_assert(breaks<rule::B06>(of<accumulate<1>, ragged, replicate>) && keeps(in_run(of<accumulate<1>, ragged>, {})));
static_assert(keeps(of<accumulate<1>, data::is<data::ragged, data::token_weighted>, replicate>));

using finite = data::is<data::finite>;
template <>
struct example<rule::B08> : recipes<recipe<replicate, finite>, recipe<replicate, data::is<data::finite, data::drops_last>>> {};
static_assert(breaks<rule::B08, rule::B22>(of<replicate, data::is<data::finite, data::endless>>));
static_assert(keeps(of<replicate, data::is<data::endless>>));
static_assert(keeps(of<replicate>) && keeps(of<finite>));
static_assert(breaks<rule::B08, rule::W01>(in_run(of<finite>, {.world_size = 2})) &&
              keeps(in_run(of<finite>, {.world_size = 1})));
static_assert(breaks<rule::B08, rule::W01>(of<finite, pair>) && keeps(of<finite, keel::world::size<1>>));

template <>
struct example<rule::B22> : recipes<recipe<data::is<data::finite, data::endless>>, recipe<finite>> {};
static_assert(keeps(of<data::is<data::endless>>));

using dropout = keel::model::has<keel::model::dropout>;
template <>
struct example<rule::B23> : recipes<recipe<dropout, objective::grpo<8>>, recipe<dropout>> {};
static_assert(breaks<rule::B23>(of<dropout, objective::ebft<8>>) && keeps(of<objective::grpo<8>>));
static_assert(keeps(of<dropout, objective::grpo<8>, keel::accept<"B23">>));

template <>
struct example<rule::B24> : recipes<recipe<accumulate<2, keel::sum>, keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>>,
                                    recipe<accumulate<2, keel::sum>>> {};
static_assert(keeps(of<accumulate<2>, keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>>));
static_assert(breaks<rule::P20>(of<accumulate<1, keel::sum>>));

template <long long Rows>
using with_rows = data::is<data::rows<Rows>>;
template <>
struct example<rule::B10>
    : recipes<recipe<replicate, keel::world::size<4>, with_rows<3>>, recipe<replicate, keel::world::size<4>, with_rows<4>>> {};
static_assert(breaks<rule::B10>(in_run(of<replicate, with_rows<3>>, {.world_size = 4})) &&
              keeps(in_run(of<replicate, with_rows<4>>, {.world_size = 4})));
static_assert(breaks<rule::W01>(in_run(of<replicate, keel::world::size<4>, with_rows<3>>, {.world_size = 2})));
static_assert(keeps({.data = with_rows<3>::configured, .run = {.world_size = 4}}));
static_assert(breaks<rule::B10>(of<with_rows<-1>>) && keeps(of<with_rows<1>>));
static_assert(breaks<rule::B10>(of<replicate, pair, with_rows<1>>));
static_assert(keeps(of<replicate, keel::world::size<4>>) && keeps(in_run(of<replicate>, {.world_size = 4})));

template <>
struct example<rule::B11> : recipes<recipe<objective::grpo<1>>, recipe<objective::grpo<2>>> {};
static_assert(breaks<rule::B11>(of<objective::ebft<1>>) && keeps(of<objective::ebft<2>>));
static_assert(keeps(of<objective::supervised>));

using groups = objective::grpo<8>;
template <>
struct example<rule::B12>
    : recipes<recipe<groups, accumulate<1, micro_batch<12>>>, recipe<groups, accumulate<1, micro_batch<16>>>> {};
static_assert(breaks<rule::B12>(of<objective::ebft<8>, accumulate<1, micro_batch<12>>>));
static_assert(breaks<rule::B12>(of<objective::grpo<2>, accumulate<1, micro_batch<3>>>));
static_assert(breaks<rule::B12>(of<groups, accumulate<1, global_batch<12>>>) &&
              keeps(of<groups, accumulate<1, global_batch<16>>>));
// Groups are whole in what is generated for an update, over all ranks; a micro-batch may cut one.
static_assert(keeps(of<groups, accumulate<2, micro_batch<12>>>) && keeps(of<groups, accumulate<8, micro_batch<1>>>));
static_assert(keeps(of<groups, replicate, keel::world::size<2>, accumulate<1, micro_batch<12>>>));
static_assert(keeps(of<groups, accumulate<2, micro_batch<4>, global_batch<8>>>));
static_assert(keeps(of<accumulate<1, micro_batch<12>>>));
static_assert(keeps({.accumulate = {.micro_batch = 12, .global_batch = 12}, .objective = {.group = 8}}));
// A group of none, or of fewer, is B11's.
static_assert(breaks<rule::B11>(of<objective::grpo<0>, accumulate<1, micro_batch<12>>>));
static_assert(breaks<rule::B11>(of<objective::grpo<-8>, accumulate<1, micro_batch<12>>>));

static_assert(keeps(of<groups, accumulate<1, micro_batch<4>>, shard::zero<1>>) &&
              breaks<rule::B12>(of<groups, accumulate<1, micro_batch<4>>, shard::zero<1>, keel::world::size<3>>));
template <>
struct example<rule::B15> : recipes<recipe<groups, halving>, recipe<groups, halving, accumulate<1, micro_batch<16>>>> {};
static_assert(keeps(of<groups, halving, data::is<data::grouped>>));
static_assert(keeps(of<groups>) && keeps(of<groups, ladder<keel::oom::offload_optimizer, keel::oom::give_up>>));
static_assert(breaks<rule::B15>(
    of<objective::ebft<2>, ladder<keel::oom::offload_optimizer, keel::oom::halve_micro_batch, keel::oom::give_up>>));
static_assert(keeps(of<halving>) && keeps({.oom = halving::configured, .objective = {.group = 8}}));
static_assert(breaks<rule::B11>(of<objective::grpo<1>, halving>));

template struct each_shown<rule::accumulate_rules>;

}  // namespace judged
