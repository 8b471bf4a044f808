// expect: O22
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::oom::ladder<keel::oom::shorten_sequence<512>, keel::oom::give_up>> {};
#else
struct mine
    : keel::recipe<keel::oom::ladder<keel::oom::shorten_sequence<512>, keel::oom::give_up, keel::oom::release_after<500_steps>>> {
};
#endif

template struct keel::checked<mine>;
