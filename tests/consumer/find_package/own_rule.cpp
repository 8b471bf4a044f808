// expect: Q01
#include <keel/recipe.hpp>

struct Q01 {
  static constexpr char const* id = "Q01";
  static constexpr char const* text = "[Q01] this team clips. Fix: keel::clip::global_norm<1.0>.";
  static constexpr bool broken(keel::config const& c) { return c.clip.kind == keel::clip::kind::none; }
};

#ifdef KEEL_TWIN
struct mine : keel::recipe<Q01, keel::clip::global_norm<1.0>> {};
#else
struct mine : keel::recipe<Q01> {};
#endif

template struct keel::checked<mine>;
