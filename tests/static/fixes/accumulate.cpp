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
    said(FIX("fewer ranks", keel::shard::replicate, keel::world::size<3>, data::is<data::rows<3>>),
         FIX("the correct keel::data::rows<N>", keel::shard::replicate, keel::world::size<4>, keel::data::is<keel::data::rows<4>>));
template <>
inline constexpr auto fixes<rule::B11> =
    said(FIX("at least 2 completions per prompt, such as keel::objective::grpo<8>", keel::objective::grpo<8>),
         FIX("at least 2 completions per prompt", keel::objective::grpo<2>));
template <>
inline constexpr auto fixes<rule::B12> =
    said(FIX("a micro_batch x accumulate x ranks", groups, keel::accumulate<2, keel::micro_batch<4>>),
         FIX("a micro_batch x accumulate x ranks", groups, keel::accumulate<1, keel::micro_batch<4>>, keel::world::size<2>, keel::shard::replicate),
         FIX("keel::global_batch<N> divisible by it", groups, keel::accumulate<2, keel::global_batch<16>>));
template <>
inline constexpr auto fixes<rule::B15> =
    said(FIX("keel::accumulate<1, keel::micro_batch<N>>", groups, halving, keel::accumulate<1, keel::micro_batch<16>>),
         FIX("keel::data::is<keel::data::grouped>", groups, halving, keel::data::is<keel::data::grouped>));
template <>
inline constexpr auto fixes<rule::B21> =
    said(FIX("keel::accumulate<1>, with micro_batch and global_batch positive", keel::accumulate<1>),
         FIX("micro_batch and global_batch positive", keel::accumulate<1, keel::micro_batch<1>, keel::global_batch<1>>),
         FIX("left out", keel::accumulate<1, keel::micro_batch<8>>));
template <>
inline constexpr auto fixes<rule::B22> =
    said(FIX("keep one of keel::data::finite", keel::data::is<keel::data::finite>),
         FIX("keel::data::endless", keel::data::is<keel::data::endless>));
template <>
inline constexpr auto fixes<rule::B24> =
    said(FIX("remove keel::sum", keel::accumulate<2>, keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>),
         FIX("a ladder without halve_micro_batch", keel::accumulate<2, keel::sum>, keel::oom::ladder<keel::oom::offload_optimizer, keel::oom::give_up>));
template <>
inline constexpr auto fixes<rule::B23> =
    said(FIX("a model without dropout", groups), FIX("keel::accept<\"B23\">", groups, keel::model::has<keel::model::dropout>, keel::accept<"B23">));

template struct each_followed<rule::accumulate_rules>;

}  // namespace fixed
