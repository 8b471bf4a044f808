// expect: M06
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine
    : keel::recipe<keel::model::has<keel::model::adapters>, keel::oom::ladder<keel::oom::quantize_base, keel::oom::give_up>> {};
#else
struct mine : keel::recipe<keel::oom::ladder<keel::oom::quantize_base, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
