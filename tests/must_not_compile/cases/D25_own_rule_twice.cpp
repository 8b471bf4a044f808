// expect: D25
#include <keel/recipe.hpp>

struct Q01 {
  static constexpr char const* id = "Q01";
  static constexpr char const* text = "[Q01] this team clips. Fix: keel::clip::global_norm<1.0>.";
  static constexpr bool broken(keel::config const& c) { return c.clip.kind == keel::clip::kind::none; }
};
struct also_q01 : Q01 {};

#ifdef KEEL_TWIN
struct mine : keel::recipe<Q01, keel::clip::global_norm<1.0>> {};
#else
struct mine : keel::recipe<Q01, also_q01, keel::clip::global_norm<1.0>> {};
#endif

template struct keel::checked<mine>;
