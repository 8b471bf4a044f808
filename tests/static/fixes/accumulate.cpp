// B: accumulation and data.
#include "typed.hpp"

namespace data = keel::data;
using ragged = data::is<data::ragged>;
using groups = keel::objective::grpo<8>;
using halving = keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>;

namespace fixed {

template <>
inline constexpr auto fixes<rule::B01> =
    said(FIX("set keel::global_batch<G> to that product", keel::accumulate<4, keel::micro_batch<2>, keel::global_batch<16>>, keel::world::size<2>,
             keel::shard::replicate),
         FIX("leave it out", keel::accumulate<4, keel::micro_batch<2>>, keel::world::size<2>, keel::shard::replicate));
template <>
inline constexpr auto fixes<rule::B03> = said(FIX("remove keel::reduce_once", keel::accumulate<2>, keel::shard::zero<2>));
template <>
inline constexpr auto fixes<rule::B06> =
    said(FIX("weighted_loss with data::token_weighted", keel::accumulate<2>, keel::data::is<keel::data::ragged, keel::data::token_weighted>),
         FIX("keel::accept<\"B06\">", keel::accumulate<2>, ragged, keel::accept<"B06">));
template <>
inline constexpr auto fixes<rule::B08> =
    said(FIX("add keel::data::drops_last to keel::data::is", keel::shard::replicate, keel::data::is<keel::data::finite, keel::data::drops_last>));
template <>
inline constexpr auto fixes<rule::B10> =
    said(FIX("the correct keel::data::rows<N> from 1 on", keel::shard::replicate, keel::world::size<4>, keel::data::is<keel::data::rows<4>>),
         FIX("the correct keel::data::rows<N> from 1 on", keel::data::is<keel::data::rows<1>>),
         FIX("no more ranks than rows", keel::shard::replicate, keel::world::size<3>, data::is<data::rows<3>>));
template <>
inline constexpr auto fixes<rule::B11> =
    said(FIX("at least 2 completions per prompt that divide the batch, as in keel::objective::grpo<8>", keel::objective::grpo<8>),
         FIX("at least 2 completions per prompt that divide the batch", keel::objective::grpo<4>, keel::accumulate<1, keel::micro_batch<4>>),
         FIX("at least 2 completions per prompt that divide the batch", keel::objective::grpo<2>),
         FIX("ebft<8>", keel::objective::ebft<8>, keel::health::ebft));
template <>
inline constexpr auto fixes<rule::B12> =
    said(FIX("micro_batch x accumulate x ranks", groups, keel::accumulate<2, keel::micro_batch<4>>),
         FIX("micro_batch x accumulate x ranks", groups, keel::accumulate<1, keel::micro_batch<4>>, keel::world::size<2>, keel::shard::replicate),
         FIX("micro_batch x accumulate x ranks, and keel::global_batch<N>, divisible by it", groups,
             keel::accumulate<2, keel::micro_batch<4>, keel::global_batch<8>>),
         FIX("keel::global_batch<N>, divisible by it", groups, keel::accumulate<2, keel::global_batch<16>>));
template <>
inline constexpr auto fixes<rule::B15> =
    said(FIX("keel::micro_batch<N> of an even number of groups", groups, halving, keel::accumulate<1, keel::micro_batch<16>>),
         FIX("keel::micro_batch<N> of an even number of groups", groups, halving, keel::accumulate<2, keel::micro_batch<48>>),
         FIX("keel::data::is<keel::data::grouped>", groups, halving, keel::data::is<keel::data::grouped>));
template <>
inline constexpr auto fixes<rule::B21> =
    said(FIX("keel::accumulate<1>", keel::accumulate<1>),
         FIX("a positive micro_batch and their product as global_batch", keel::accumulate<1, keel::micro_batch<8>, keel::global_batch<8>>),
         FIX("a positive micro_batch", keel::accumulate<4, keel::micro_batch<1>>), FIX("without both", keel::accumulate<4>));
template <>
inline constexpr auto fixes<rule::B22> =
    said(FIX("keep one of keel::data::finite", keel::data::is<keel::data::finite>),
         FIX("keel::data::endless", keel::data::is<keel::data::endless>));
template <>
inline constexpr auto fixes<rule::B24> =
    said(FIX("remove keel::sum", keel::accumulate<2>, halving), FIX("remove keel::sum", keel::accumulate<1>, halving),
         FIX("above accumulate<1> the rung halve_micro_batch", keel::accumulate<2, keel::sum>,
             keel::oom::ladder<keel::oom::offload_optimizer, keel::oom::give_up>));
template <>
inline constexpr auto fixes<rule::B23> =
    said(FIX("a model without dropout", groups), FIX("keel::accept<\"B23\">", groups, keel::model::has<keel::model::dropout>, keel::accept<"B23">));

template struct each_followed<rule::accumulate_rules>;

}  // namespace fixed
