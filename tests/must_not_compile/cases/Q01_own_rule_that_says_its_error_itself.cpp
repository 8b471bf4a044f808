// expect: Q01
#include <keel/recipe.hpp>

using namespace keel::literals;

struct Q01 {
  static constexpr char const* id = "Q01";
  static constexpr char const* text = "[Q01] our cluster loses a disk a day. Fix: keel::checkpoint::keep<2> or more.";
  static constexpr bool broken(keel::config const& c) { return c.checkpoint.keep < 2; }
  template <bool Holds, class Recipe>
  struct demand {
    static_assert(Holds, "[Q01] our cluster loses a disk a day. Fix: keel::checkpoint::keep<2> or more.");
  };
};

#ifdef KEEL_TWIN
struct mine : keel::recipe<Q01, keel::checkpoint::every<500_steps, keel::checkpoint::keep<2>>> {};
#else
struct mine : keel::recipe<Q01, keel::checkpoint::every<500_steps, keel::checkpoint::keep<1>>> {};
#endif

template struct keel::checked<mine>;
