// expect: N29
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::spike::skip<keel::spike::in_a_row<10>>> {};
#else
struct mine : keel::recipe<keel::spike::skip<keel::spike::in_a_row<0>>> {};
#endif

template struct keel::checked<mine>;
