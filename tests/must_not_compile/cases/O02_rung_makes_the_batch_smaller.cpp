// expect: O02
#include <keel/recipe.hpp>

struct half_the_batch {
  static constexpr keel::oom::rung_settings rung{.kind = keel::oom::rung_kind::custom, .keeps_effective_batch = false};
};

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
#else
struct mine : keel::recipe<keel::oom::ladder<half_the_batch, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
