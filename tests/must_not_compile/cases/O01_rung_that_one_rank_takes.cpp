// expect: O01
#include <keel/recipe.hpp>

struct custom_rung {
#ifdef KEEL_TWIN
  static constexpr keel::oom::rung_settings rung{.kind = keel::oom::rung_kind::custom, .agreed = true};
#else
  static constexpr keel::oom::rung_settings rung{.kind = keel::oom::rung_kind::custom, .agreed = false};
#endif
};

struct mine : keel::recipe<keel::shard::replicate, keel::oom::ladder<custom_rung, keel::oom::give_up>> {};

template struct keel::checked<mine>;
