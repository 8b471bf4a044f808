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
         FIX("keel::objective::supervised", packed, keel::model::has<keel::model::sequence_boundaries>, keel::objective::supervised));

template struct each_followed<rule::data_rules>;

}  // namespace fixed
