// expect: D25
#include <keel/recipe.hpp>

using namespace keel::literals;

struct Q01 {
  static constexpr char const* id = "Q01";
  static constexpr char const* text =
#ifdef KEEL_TWIN
      "[Q01] our cluster loses a disk a day. Fix: keel::checkpoint::keep<2> or more.";
#else
      "[Q01] our cluster loses a disk a day, keep two checkpoints or more.";
#endif
  static constexpr bool broken(keel::config const& c) { return c.checkpoint.keep < 2; }
};

struct mine : keel::recipe<Q01, keel::checkpoint::every<500_steps>> {};

template struct keel::checked<mine>;
