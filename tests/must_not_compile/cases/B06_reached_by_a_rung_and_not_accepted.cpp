// expect: B06
// says: reached by rung 1 of oom::ladder: [B06]
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::data::is<keel::data::ragged>,
                           keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>, keel::accept<"B06">> {};
#else
struct mine
    : keel::recipe<keel::data::is<keel::data::ragged>, keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
