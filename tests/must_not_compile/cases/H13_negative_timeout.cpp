// expect: H13
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::timeout::set<keel::timeout::hard<keel::seconds{600}>>> {};
#else
struct mine : keel::recipe<keel::timeout::set<keel::timeout::hard<keel::seconds{-600}>>> {};
#endif

template struct keel::checked<mine>;
