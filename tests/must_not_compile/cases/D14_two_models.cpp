// expect: D14
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::model::partly_frozen> {};
#else
struct mine : keel::recipe<keel::model::partly_frozen, keel::model::all_trainable> {};
#endif

template struct keel::checked<mine>;
