// expect: D10
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::health::sft> {};
#else
struct mine : keel::recipe<keel::health::sft, keel::health::off> {};
#endif

template struct keel::checked<mine>;
