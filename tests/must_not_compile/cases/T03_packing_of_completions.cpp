// expect: T03
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::data::is<keel::data::packed>, keel::model::has<keel::model::sequence_boundaries>,
                           keel::objective::grpo<8> > {};
#else
struct mine : keel::recipe<keel::data::is<keel::data::packed>, keel::accept<"T01">, keel::objective::grpo<8> > {};
#endif

template struct keel::checked<mine>;
