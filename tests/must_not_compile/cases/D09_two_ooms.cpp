// expect: D09
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::oom::ladder<keel::oom::give_up>> {};
#else
struct mine : keel::recipe<keel::oom::ladder<keel::oom::give_up>, keel::oom::raise> {};
#endif

template struct keel::checked<mine>;
