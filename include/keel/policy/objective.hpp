// objective: how the loss is formed.
//   supervised   the default: loss_of(batch) is the loss.
//   grpo<G>      group-relative policy optimization (Shao et al. 2024, "DeepSeekMath"); G completions per prompt.
//   ebft<G>      energy-based fine-tuning; G completions per prompt.
// Left out: PPO with a learned critic.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct objective;
}

namespace keel::objective {

enum class kind : unsigned char { supervised, grpo, ebft };

struct settings {
  objective::kind kind = kind::supervised;
  long long group = 0;  ///< completions per prompt
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

struct supervised : fills<slot::objective> {
  static constexpr settings configured{};
};
template <long long Group>
struct grpo : fills<slot::objective> {
  static constexpr settings configured{kind::grpo, Group};
};
template <long long Group>
struct ebft : fills<slot::objective> {
  static constexpr settings configured{kind::ebft, Group};
};

}  // namespace keel::objective

namespace keel {

struct slot::objective : slot_description {
  using settings = keel::objective::settings;
  using default_policy = keel::objective::supervised;
  static constexpr char const* name = "objective";
  static constexpr char const* given_twice = "D12";
  static constexpr policy_list<settings, 3> policies() {
    return {{{"supervised", {}},
             {"grpo", {keel::objective::kind::grpo}, " group ", "group", true},
             {"ebft", {keel::objective::kind::ebft}, " group ", "group", true}}};
  }
  static constexpr void fields(auto& s, auto& field) { field.number("group", s.group); }
};

}  // namespace keel
