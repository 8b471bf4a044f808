// T: what the data is, and what is looked at in it.
#include "example.hpp"

namespace judged {

using packed = keel::data::is<keel::data::packed>;
using boundaries = keel::model::has<keel::model::sequence_boundaries>;

template <>
struct example<rule::T01> : recipes<recipe<packed>, recipe<packed, boundaries>> {};
static_assert(keeps(of<packed, keel::accept<"T01">>));

using groups = keel::objective::grpo<8>;
template <>
struct example<rule::T03> : recipes<recipe<packed, groups, keel::accept<"T01">>, recipe<packed, boundaries, groups>> {};
static_assert(breaks<rule::T03>(of<packed, keel::objective::ebft<8>, keel::accept<"T01">>));
static_assert(keeps(of<boundaries, groups>));

template <long long Size>
using vocabulary = keel::batch_guard::check<keel::batch_guard::vocabulary<Size>>;
template <>
struct example<rule::T08> : recipes<recipe<vocabulary<-1>>, recipe<vocabulary<1>>> {};
static_assert(breaks<rule::T08>(of<keel::batch_guard::check<keel::batch_guard::classes<-1>>>));
static_assert(breaks<rule::T08>(of<keel::batch_guard::check<keel::batch_guard::longest<-1>>>));

template struct each_shown<rule::data_rules>;

}  // namespace judged
