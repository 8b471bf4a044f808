// expect: B22
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::data::is<keel::data::finite>> {};
#else
struct mine : keel::recipe<keel::data::is<keel::data::finite, keel::data::endless>> {};
#endif

template struct keel::checked<mine>;
