// determinism: whether a run can be repeated.
//   off          the default: LibTorch's generators are as the program left them.
//   seeded<S>    seeds LibTorch's generators before the first update. A CPU run then repeats bitwise on the same machine, LibTorch version
//                and number of threads.
//   strict<S>    also makes LibTorch reject operators without a deterministic kernel while fit runs.
// Left out: reseeding at every step, which would hide a generator that a resume failed to restore.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct determinism;
}

namespace keel::determinism {

enum class kind : unsigned char { off, seeded, strict };

struct settings {
  determinism::kind kind = kind::off;
  unsigned long long seed = 0;  ///< seed of LibTorch's generators
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

struct off : fills<slot::determinism> {
  static constexpr settings configured{};
};
template <unsigned long long Seed>
struct seeded : fills<slot::determinism> {
  static constexpr settings configured{kind::seeded, Seed};
};
template <unsigned long long Seed>
struct strict : fills<slot::determinism> {
  static constexpr settings configured{kind::strict, Seed};
};

}  // namespace keel::determinism

namespace keel {

struct slot::determinism : slot_description {
  using settings = keel::determinism::settings;
  using default_policy = keel::determinism::off;
  static constexpr char const* name = "determinism";
  static constexpr char const* given_twice = "D11";
  static constexpr policy_list<settings, 3> policies() {
    return {{{"off", {}},
             {"seeded", {keel::determinism::kind::seeded}, " seed ", "seed", true},
             {"strict", {keel::determinism::kind::strict}, " seed ", "seed", true}}};
  }
  static constexpr void fields(auto& s, auto& field) { field.number("seed", s.seed); }
};

}  // namespace keel
