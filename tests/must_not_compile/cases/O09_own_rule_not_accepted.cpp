// expect: O09
#include <keel/recipe.hpp>

struct Q02 {
  static constexpr char const* id = "Q02";
  static constexpr char const* text = "[Q02] our kernels have no fused attention. Fix: keel::attention::math.";
  static constexpr bool may_be_accepted = true;
  static constexpr bool broken(keel::config const& c) { return c.attention.kind == keel::attention::kind::fused; }
};

#ifdef KEEL_TWIN
struct mine : keel::recipe<Q02, keel::oom::ladder<keel::oom::fused_attention, keel::oom::give_up>, keel::accept<"Q02">> {};
#else
struct mine : keel::recipe<Q02, keel::oom::ladder<keel::oom::fused_attention, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
