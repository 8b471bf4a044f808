// health: which set of alarms watches the run's metrics.
//   off            the default.
//   sft            loss plateau, overfitting, gradient norms, for supervised fine-tuning.
//   grpo, ebft     rewards, entropy, divergence from the reference, for the two objectives of those names.
//   watch<R..>     your own alarms.
// Left out: alarms that end a run by themselves; that is nonfinite's and spike's decision.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct health;
}

namespace keel::health {

enum class kind : unsigned char { off, sft, grpo, ebft, watch };

struct settings {
  health::kind kind = kind::off;
  int alarms = 0;  ///< of watch<..>
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

struct off : fills<slot::health> {
  static constexpr settings configured{};
};
struct sft : fills<slot::health> {
  static constexpr settings configured{kind::sft, 0};
};
struct grpo : fills<slot::health> {
  static constexpr settings configured{kind::grpo, 0};
};
struct ebft : fills<slot::health> {
  static constexpr settings configured{kind::ebft, 0};
};
template <class... Alarms>
struct watch : fills<slot::health> {
  static constexpr settings configured{kind::watch, static_cast<int>(sizeof...(Alarms))};
};

}  // namespace keel::health

namespace keel {

struct slot::health : slot_description {
  using settings = keel::health::settings;
  using default_policy = keel::health::off;
  static constexpr char const* name = "health";
  static constexpr char const* given_twice = "D10";
  static constexpr policy_list<settings, 5> policies() {
    return {{{"off", {}},
             {"sft", {keel::health::kind::sft}},
             {"grpo", {keel::health::kind::grpo}},
             {"ebft", {keel::health::kind::ebft}},
             {"watch", {keel::health::kind::watch}, " alarms ", "alarms", true}}};
  }
  static constexpr void fields(auto& s, auto& field) { field.number_between("alarms", s.alarms, 0, 1000); }
};

}  // namespace keel
