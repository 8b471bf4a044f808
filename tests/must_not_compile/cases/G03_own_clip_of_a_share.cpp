// expect: G03
#include <keel/recipe.hpp>

struct own_clip : keel::fills<keel::slot::clip> {
#ifdef KEEL_TWIN
  static constexpr keel::clip::settings configured{.kind = keel::clip::kind::custom, .limit = 1.0, .by_joint_norm = true};
#else
  static constexpr keel::clip::settings configured{.kind = keel::clip::kind::custom, .limit = 1.0};
#endif
};

struct mine : keel::recipe<own_clip, keel::shard::zero<2>> {};

template struct keel::checked<mine>;
