// A recipe has one slot for each decision of a training run; a policy fills one slot. This header has the common parts of all slot headers:
// the base of a policy, the application of a policy's options to its settings, and the description of a slot.
//
// A policy is any type with
//     using in_slot = keel::slot::clip;             the slot that it fills (inherit keel::fills<keel::slot::clip>)
//     static constexpr clip::settings configured;   that slot's settings, a structural aggregate with ==
// Policies of keel and user-defined policies are treated alike.
//
// A slot is a type in keel::slot, described once, at the end of its header:
//     struct slot::clip : slot_description {
//       using settings = keel::clip::settings;
//       using default_policy = keel::clip::none;           used by a recipe that does not fill the slot
//       static constexpr char const* name = "clip";        also names its header, its namespace and its member of the configuration
//       static constexpr char const* given_twice = "G07";  the rule about a second policy
//       static constexpr policy_list<settings, 6> policies() { .. }
//       static constexpr void fields(auto& s, auto& field) { .. }
//     };
// `fields` calls, for each setting in order, the member of `field` for its kind: number, truth, updates, seconds, choice and the others
// that keel::detail::printed_fields lists.
// This description drives the folding of a recipe into its configuration, the rule against a second policy, printing, JSON in both
// directions, the random recipes of the tests and the table of slots in the README. keel/config/config.hpp lists the slots.
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
  /// False if the policy's interval has no unit that the policy takes (rule D26).
  static constexpr bool has_unit = true;
};

/// A policy of a slot, as used in files, prints and tables.
template <class Settings>
struct policy_entry {
  char const* name;                ///< name in files and prints; "custom": a user-defined policy, which only C++ can name
  Settings start;                  ///< settings before the fields are set
  char const* fields = "";         ///< fields that it takes, between blanks; "*": all fields of the slot
  char const* argument = nullptr;  ///< the field that its template argument sets, as does `{"name": value}` in a file
  bool needs_argument = false;     ///< the name requires its argument
  char const* typed = nullptr;     ///< name in C++: a different one, or the same if the options have a separate template
};

/// The policies of a slot, in the order of tables.
template <class Settings, int Count>
struct policy_list {
  policy_entry<Settings> all[Count];  ///< the policies
};

/// The base of a slot's description, with common defaults.
struct slot_description {
  /// True for a slot whose fields appear directly in it, without the name of a policy: {"ema": {"decay": 0.999}}.
  static constexpr bool is_single = false;
  /// Printed for such a slot if it sets nothing.
  static constexpr char const* unset = "none";
  /// The fix for a recipe with two policies for the slot; nullptr: keep one of its policies.
  static constexpr char const* keep_one = nullptr;
  /// Returns true if both are settings of the same policy, regardless of its arguments.
  static constexpr bool is_same_policy(auto const& a, auto const& b) { return a.kind == b.kind; }
  /// Visits the fields of the slot's settings, in order. By default there are none.
  static constexpr void fields(auto& /*settings*/, auto& /*field*/) {}
};

namespace detail {

/// Returns true if the field is in a policy entry's list of fields.
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

// `Type::configured` alone is not enough: for a non-static member it is a hard error in g++ 12.
template <class Type>
concept policy_members_are_static = requires {
  requires std::is_base_of_v<slot_description, typename Type::in_slot>;
  *&Type::configured;
};
}  // namespace detail

/// A type that can be used as a policy in a recipe. Rule D00 reports a type that almost is one.
template <class Type>
concept policy = detail::policy_members_are_static<Type> && requires {
  requires std::is_same_v<std::remove_cvref_t<decltype(Type::configured)>, typename Type::in_slot::settings>;
  typename std::bool_constant<(Type::configured == Type::configured)>;
};

/// A policy of this slot: `template <keel::policy_for<keel::slot::clip> Policy>`.
template <class Type, class Slot>
concept policy_for = policy<Type> && std::is_same_v<typename Type::in_slot, Slot>;

/// An option of a policy: `static constexpr void apply(Settings&)` writes its settings.
template <class Option, class Settings>
concept option_of = requires { static_cast<void (*)(Settings&)>(&Option::apply); };

/// An option that sets one member: `template <long long N> struct keep : sets<&settings::keep, N> {};`
template <auto Member, auto Value>
struct sets;
/// The same, with the member's type as a parameter.
template <class Settings, class Type, Type Settings::* Member, auto Value>
struct sets<Member, Value> {
  /// Sets the member.
  static constexpr void apply(Settings& to) { to.*Member = Value; }
};

/// Returns the settings with all options applied, in order.
template <class Settings, class... Options>
constexpr Settings with_options(Settings settings) {
  (Options::apply(settings), ...);
  return settings;
}

/// True if every two options commute. Two options do not commute if they write different values to the same field; one of them would be
/// ignored silently.
template <class Settings, class... Options>
constexpr bool options_agree(Settings const& initial) {
  using step = void (*)(Settings&);
  // Loops by count instead of up to a null: under UBSan g++ 12 does not accept a comparison of functions as a constant expression.
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

/// The base of a policy with options, which are applied to `Start`.
template <class Slot, auto Start, class... Options>
struct configures : fills<Slot> {
  /// The slot's settings, without the const that g++ 12 adds.
  using settings = std::remove_const_t<decltype(Start)>;
  /// The settings of the slot.
  static constexpr settings configured = with_options<settings, Options...>(Start);
  /// False if two options contradict each other (rule D20).
  static constexpr bool options_agree = keel::options_agree<settings, Options...>(Start);
};

}  // namespace keel
