// T: packed sequences.
#include "typed.hpp"

using packed = keel::data::is<keel::data::packed>;
using groups = keel::objective::grpo<8>;

namespace fixed {

template <>
inline constexpr auto fixes<rule::T01> =
    said(FIX("keel::model::has<keel::model::sequence_boundaries> if attention stops there", packed, keel::model::has<keel::model::sequence_boundaries>),
         FIX("keel::accept<\"T01\">", packed, keel::accept<"T01">));
template <>
inline constexpr auto fixes<rule::T03> =
    said(FIX("data that is not keel::data::packed", groups),
         FIX("keel::model::has<keel::model::sequence_boundaries>", packed, groups, keel::model::has<keel::model::sequence_boundaries>));
template <>
inline constexpr auto fixes<rule::T08> =
    said(FIX("keel::batch_guard::vocabulary<N>, classes<N> and longest<N> from 1 on",
             keel::batch_guard::check<keel::batch_guard::vocabulary<1>, keel::batch_guard::classes<1>, keel::batch_guard::longest<1>>),
         FIX("remove that option", keel::batch_guard::check<>));

template struct each_followed<rule::data_rules>;

}  // namespace fixed
