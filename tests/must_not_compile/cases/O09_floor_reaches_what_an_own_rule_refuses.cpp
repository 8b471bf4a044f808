// expect: O09
#include <keel/recipe.hpp>

struct Q03 {
  static constexpr char const* id = "Q03";
  static constexpr char const* text = "[Q03] below 16 our gradients vanish. Fix: keel::loss_scale::floor<16.0> or more.";
  static constexpr bool broken(keel::config const& c) { return c.loss_scale.initial < 16.0; }
};

#ifdef KEEL_TWIN
struct mine : keel::recipe<Q03, keel::precision::fp16, keel::loss_scale::dynamic<keel::loss_scale::floor<16.0>>> {};
#else
struct mine : keel::recipe<Q03, keel::precision::fp16, keel::loss_scale::dynamic<keel::loss_scale::floor<1.0>>> {};
#endif

template struct keel::checked<mine>;
