// expect: D25
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
#define ID_IS static constexpr
#define BROKEN_IS static constexpr
#else
#define ID_IS
#define BROKEN_IS static
#endif

struct Q01 {
  ID_IS char const* id = "Q01";
  static constexpr char const* text = "[Q01] this team clips. Fix: keel::clip::global_norm<1.0>.";
  BROKEN_IS bool broken(keel::config const& c) { return c.clip.kind == keel::clip::kind::none; }
};

struct mine : keel::recipe<Q01, keel::clip::global_norm<1.0>> {};

template struct keel::checked<mine>;
