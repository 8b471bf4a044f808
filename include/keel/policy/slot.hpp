// A recipe has one slot for each decision of a training run; a policy fills one slot. This header has what every slot's header
// builds on: the base of a policy, how a policy's options are folded into its settings, and how a slot is described.
//
// A policy is any type with
//     using in_slot = keel::slot::clip;             the slot that it fills (inherit keel::fills<keel::slot::clip>)
//     static constexpr clip::settings configured;   that slot's settings, a structural aggregate with ==
// keel's own policies and a user's are treated alike everywhere below.
//
// A slot is a type in keel::slot, described once, at the end of its header:
//     struct slot::clip : slot_description {
//       using settings = keel::clip::settings;
//       using default_policy = keel::clip::none;           of a recipe that leaves the slot open
//       static constexpr char const* name = "clip";        its header's, its namespace's, its member's of the configuration
//       static constexpr char const* given_twice = "G07";  the rule about a second policy
//       static constexpr policy_list<settings, 6> policies() { .. }
//       static constexpr void fields(auto& s, auto& field) { .. }
//     };
// `fields` calls, for each setting and in order, the member of `field` that suits its kind: number, truth, updates, seconds,
// choice and the others that keel::detail::printed_fields lists.
// The fold of a recipe into its configuration, the rule about a second policy, printing, JSON in both directions, the random
// recipes of the tests and the table of slots in the README come from this description. keel/config/config.hpp lists the
// slots.
#pragma once

#include <concepts>
#include <type_traits>

namespace keel {

/// The base of every policy: `struct mine : keel::fills<keel::slot::clip> { .. };`
template <class Slot>
struct fills {
  using in_slot = Slot;  ///< the slot that the policy fills
  /// False if two options of the policy contradict each other (rule D20).
  static constexpr bool options_agree = true;
  /// False if its interval has no unit that the policy takes (rule D26).
  static constexpr bool has_unit = true;
};

/// A policy of a slot, as files, prints and tables have it.
template <class Settings>
struct policy_entry {
  char const* name;                ///< in files and in print; "custom": your own policy, which only C++ can name
  Settings start;                  ///< before its fields are set
  char const* fields = "";         ///< that it takes, between blanks; "*": all of the slot's
  char const* argument = nullptr;  ///< the field that its template argument sets, and `{"name": value}` in a file
  bool needs_argument = false;     ///< the name alone says too little
  char const* typed = nullptr;     ///< its name in C++: another one, or the same where the options have a separate template
};

/// The policies of a slot, in the order of tables.
template <class Settings, int Count>
struct policy_list {
  policy_entry<Settings> all[Count];  ///< a policy each
};

/// The base of a slot's description, with what most slots have in common.
struct slot_description {
  /// True for a slot whose fields stand in it at once, without the name of a policy: {"ema": {"decay": 0.999}}.
  static constexpr bool is_single = false;
  /// What prints say of such a slot that sets nothing.
  static constexpr char const* unset = "none";
  /// What a recipe with two policies for the slot should do; nullptr: keep one of its policies.
  static constexpr char const* keep_one = nullptr;
  /// True if both are of the same policy, whatever its arguments.
  static constexpr bool is_same_policy(auto const& a, auto const& b) { return a.kind == b.kind; }
  /// Names the fields of the slot's settings, in order; none.
  static constexpr void fields(auto& /*settings*/, auto& /*field*/) {}
};

namespace detail {

/// True if a policy takes a field, by the list of its entry.
constexpr bool takes(char const* fields, char const* name) {
  if (*fields == '*') return true;
  for (; *fields != '\0'; ++fields) {
    if (*fields != ' ') continue;
    int i = 0;
    while (name[i] != '\0' && fields[i + 1] == name[i]) ++i;
    if (name[i] == '\0' && fields[i + 1] == ' ') return true;
  }
  return false;
}

// Not through `Type::configured` alone: of a member that is not static that is a hard error in g++ 12.
template <class Type>
concept policy_members_are_static = requires {
  requires std::is_base_of_v<slot_description, typename Type::in_slot>;
  *&Type::configured;
};
}  // namespace detail

/// A type that may stand in a recipe. A type that is nearly one is reported as rule D00.
template <class Type>
concept policy = detail::policy_members_are_static<Type> && requires {
  requires std::is_same_v<std::remove_cvref_t<decltype(Type::configured)>, typename Type::in_slot::settings>;
  typename std::bool_constant<(Type::configured == Type::configured)>;
};

/// A policy of this slot: `template <keel::policy_for<keel::slot::clip> Policy>`.
template <class Type, class Slot>
concept policy_for = policy<Type> && std::is_same_v<typename Type::in_slot, Slot>;

/// An option of a policy: `static constexpr void apply(Settings&)` writes what it decides.
template <class Option, class Settings>
concept option_of = requires { static_cast<void (*)(Settings&)>(&Option::apply); };

/// An option that sets one member: `template <long long N> struct keep : sets<&settings::keep, N> {};`
template <auto Member, auto Value>
struct sets;
/// The same, with the member's type.
template <class Settings, class Type, Type Settings::* Member, auto Value>
struct sets<Member, Value> {
  /// Sets the member.
  static constexpr void apply(Settings& to) { to.*Member = Value; }
};

/// The settings with all options applied, in their order.
template <class Settings, class... Options>
constexpr Settings with_options(Settings settings) {
  (Options::apply(settings), ...);
  return settings;
}

/// True if every two of the options commute. Two that do not write the same field with different values, so that one
/// of them would be accepted and ignored.
template <class Settings, class... Options>
constexpr bool options_agree(Settings const& initial) {
  using step = void (*)(Settings&);
  // By count and not to a null at the end: under UBSan g++ 12 takes no comparison of functions for a constant.
  constexpr int count = sizeof...(Options);
  step const steps[count + 1] = {&Options::apply...};
  for (int i = 0; i < count; ++i) {
    for (int j = i + 1; j < count; ++j) {
      Settings forward = initial;
      Settings backward = initial;
      steps[i](forward), steps[j](forward);
      steps[j](backward), steps[i](backward);
      if (!(forward == backward)) return false;
    }
  }
  return true;
}

/// The base of a policy with options: what they make of `Start`.
template <class Slot, auto Start, class... Options>
struct configures : fills<Slot> {
  /// The slot's settings; without const, which g++ 12 puts there.
  using settings = std::remove_const_t<decltype(Start)>;
  /// What the policy sets of its slot.
  static constexpr settings configured = with_options<settings, Options...>(Start);
  /// False if two options contradict each other (rule D20).
  static constexpr bool options_agree = keel::options_agree<settings, Options...>(Start);
};

}  // namespace keel
