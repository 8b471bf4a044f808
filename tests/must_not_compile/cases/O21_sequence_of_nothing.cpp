// expect: O21
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::oom::ladder<keel::oom::shorten_sequence<512>, keel::oom::give_up>> {};
#else
struct mine : keel::recipe<keel::oom::ladder<keel::oom::shorten_sequence<0>, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
