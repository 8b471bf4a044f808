// expect: D19
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::data::is<keel::data::endless>> {};
#else
struct mine : keel::recipe<keel::data::is<keel::data::endless>, keel::data::usual> {};
#endif

template struct keel::checked<mine>;
