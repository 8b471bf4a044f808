// expect: D00
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct own_clip : keel::fills<keel::slot::clip> {
  static constexpr keel::clip::settings configured{keel::clip::kind::custom, 1.0};
};
#else
struct own_clip : keel::fills<keel::slot::clip> {};
#endif

struct mine : keel::recipe<own_clip> {};

template struct keel::checked<mine>;
