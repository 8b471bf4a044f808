// expect: D25
#include <keel/recipe.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
#define OWN_ID "Q01"
#else
#define OWN_ID "U01"
#endif

struct two_copies {
  static constexpr char const* id = OWN_ID;
  static constexpr char const* text = "[" OWN_ID "] our cluster loses a disk a day. Fix: keel::checkpoint::keep<2> or more.";
  static constexpr bool broken(keel::config const& c) { return c.checkpoint.keep < 2; }
};

struct mine : keel::recipe<two_copies, keel::checkpoint::every<500_steps>> {};

template struct keel::checked<mine>;
