// T: packed sequences.
#include "example.hpp"

namespace judged {

using packed = keel::data::is<keel::data::packed>;
using boundaries = keel::model::has<keel::model::sequence_boundaries>;

template <>
struct example<rule::T01> : recipes<recipe<packed>, recipe<packed, boundaries>> {};
static_assert(keeps(of<packed, keel::accept<"T01">>));

using groups = keel::objective::grpo<8>;
template <>
struct example<rule::T03> : recipes<recipe<packed, boundaries, groups>, recipe<packed, boundaries>> {};
static_assert(breaks<rule::T03>(of<packed, boundaries, keel::objective::ebft<8>>));
static_assert(keeps(of<boundaries, groups>));

template struct each_shown<rule::data_rules>;

}  // namespace judged
