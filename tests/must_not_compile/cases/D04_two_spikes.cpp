// expect: D04
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::spike::skip<>> {};
#else
struct mine : keel::recipe<keel::spike::skip<>, keel::spike::ignore> {};
#endif

template struct keel::checked<mine>;
