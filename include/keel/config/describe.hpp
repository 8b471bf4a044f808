// Prints a recipe: one line per slot, as written in the source, with all digits of every number.
#pragma once

#include <concepts>
#include <keel/config/config.hpp>
#include <keel/policy/given.hpp>
#include <keel/policy/text.hpp>

namespace keel {

/// Selects the parts of a recipe to print.
enum class shown : unsigned char {
  all,  ///< every slot, with each of its nonzero settings
  set,  ///< slots that the recipe sets, with the settings that differ from their policy's defaults
};

namespace detail {

/// The settings of a policy as text, in the order of its fields.
class printed_fields {
 public:
  struct entry {
    char const* name = "";
    slot_text value{};
    bool is_zero = false;  ///< or false, empty or none
    bool is_truth = false;
  };

  /// `taken`: the fields that the policy takes, between blanks, or "*".
  explicit printed_fields(char const* taken) : taken_(taken) {}

  void truth(char const* name, bool value) {
    if (entry* one = add(name, !value)) {
      one->is_truth = true;
      one->value << (value ? "true" : "false");
    }
  }
  void number(char const* name, auto value) {
    if (entry* one = add(name, value == decltype(value){})) put(*one, value);
  }
  void number_between(char const* name, int value, int /*least*/, int /*most*/) { number(name, value); }
  void number_or_infinity(char const* name, double value) {
    if (entry* one = add(name, false)) value > 1.7976931348623157e308 ? void(one->value << "infinity") : put(*one, value);
  }
  void optional_number(char const* name, double value, bool is_set) {
    if (entry* one = add(name, !is_set)) put(*one, value);
  }
  void updates(char const* name, long long value) { with_unit(name, value, value == 0, " steps"); }
  void optional_updates(char const* name, long long value, bool is_set) { with_unit(name, value, !is_set, " steps"); }
  void epochs(char const* name, long long value) { with_unit(name, value, value == 0, " epochs"); }
  void tokens(char const* name, long long value) { with_unit(name, value, value == 0, " tokens"); }
  void seconds(char const* name, long long value) { with_unit(name, value, value == 0, " s"); }
  template <int Size>
  void list_of_updates(char const* name, long long const (&values)[Size], int count) {
    entry* const one = add(name, count == 0);
    if (one == nullptr) return;
    for (int i = 0; i < count && i < Size; ++i) one->value << (i == 0 ? "" : " ") << values[i];
    one->value << " steps";
  }
  void name(char const* name, char const* letters) {
    if (entry* one = add(name, *letters == '\0')) one->value << letters;
  }
  template <class Enum, int Size>
  void choice(char const* name, Enum value, char const* const (&names)[Size]) {
    if (entry* one = add(name, static_cast<int>(value) == 0)) one->value << names[static_cast<int>(value)];
  }
  template <class Settings, int Size, class Description>
  void list(char const* name, Settings const (&values)[Size], int count, Description description);

  entry const* begin() const { return entries_; }
  entry const* end() const { return entries_ + count_; }

 private:
  entry* add(char const* name, bool is_zero) {
    if (!takes(taken_, name) || count_ == most) return nullptr;
    entries_[count_] = {name, {}, is_zero};
    return &entries_[count_++];
  }
  void with_unit(char const* name, long long value, bool is_zero, char const* unit) {
    entry* const one = add(name, is_zero);
    if (one != nullptr) put(*one, value);
    if (one != nullptr && !is_given(value)) one->value << unit;
  }
  static void put(entry& to, auto value) { is_given(value) ? to.value << "given" : to.value << value; }

  static constexpr int most = 32;
  char const* taken_;
  entry entries_[most];
  int count_ = 0;
};

/// Returns the policy entry that matches these settings; nullptr if there is none.
template <class Description, class Policies, class Settings>
auto const* policy_of_settings(Policies const& policies, Settings const& settings) {
  for (auto const& policy : policies.all) {
    if (Description::is_same_policy(policy.start, settings)) return &policy;
  }
  return static_cast<decltype(&policies.all[0])>(nullptr);
}

/// Returns a policy as written in the source: its name, its argument and its other settings. Omits the name if `is_single`.
template <class Description, class Settings>
slot_text print_policy(Settings settings, shown what, bool is_single) {
  slot_text out;
  auto const policies = Description::policies();
  auto const* const policy = policy_of_settings<Description>(policies, settings);
  if (policy == nullptr) return out << "unknown";
  printed_fields now(policy->fields);
  Description::fields(settings, now);
  printed_fields before(policy->fields);
  Settings start = policy->start;
  Description::fields(start, before);

  if (!is_single || *policy->fields == '\0') out << (policy->typed != nullptr ? policy->typed : policy->name);
  auto const is_argument = [&](auto const& field) {
    return policy->argument != nullptr && is_same(policy->argument, field.name);
  };
  auto const* default_of = before.begin();
  auto const is_default = [&](auto const& field) {
    auto const& other = *default_of++;
    return other.is_zero == field.is_zero && is_same(other.value.c_str(), field.value.c_str());
  };
  // The argument is printed if the name requires it, or if it is set.
  for (auto const& field : now) {
    bool const is_left_out = is_default(field) && !policy->needs_argument && (what == shown::set || field.is_zero);
    if (is_argument(field) && (!is_left_out || is_single)) out << (out.size() > 0 ? " " : "") << field.value.c_str();
  }
  default_of = before.begin();
  for (auto const& field : now) {
    bool const is_left_out = is_default(field) && (what == shown::set || field.is_zero);
    if (is_argument(field) || is_left_out) continue;
    out << (out.size() > 0 ? ", " : "") << field.name;
    if (!field.is_truth || field.is_zero) out << " " << field.value.c_str();
  }
  return out;
}

template <class Settings, int Size, class Description>
void printed_fields::list(char const* name, Settings const (&values)[Size], int count, Description /*description*/) {
  entry* const one = add(name, count == 0);
  if (one == nullptr) return;
  for (int i = 0; i < count && i < Size; ++i) {
    one->value << (i == 0 ? "" : ", ") << print_policy<Description>(values[i], shown::all, false).c_str();
  }
}

template <class Slot>
slot_text print_slot(config const& c, shown what) {
  slot_text out = print_policy<Slot>(c.*place<Slot>, what, Slot::is_single);
  return out.size() > 0 ? out : out << Slot::unset;
}

template <class Visit, class... Slots>
void for_each_slot(config const& c, shown what, Visit& visit, slot_list<Slots...>) {
  static constexpr config defaults;
  ((what == shown::set && c.*place<Slots> == defaults.*place<Slots> ? void() : visit(Slots::name, print_slot<Slots>(c, what))),
   ...);
}

}  // namespace detail

/// Calls `visit(slot_name, slot_text)` for every slot, or for those that the recipe sets, in the order of keel::slots.
template <class Visit>
void for_each_slot(config const& c, Visit&& visit, shown what = shown::all) {
  detail::for_each_slot(c, what, visit, slots{});
}

/// Returns the configuration as a table with one line per slot. A template, so that a recipe that is not printed costs nothing.
recipe_text describe(std::same_as<config> auto const& c, shown what = shown::all) {
  recipe_text out;
  for_each_slot(
      c,
      [&](char const* name, slot_text const& value) {
        int const column = out.size() + 14;
        out << name;
        out.pad_to(column);
        out << value.c_str() << "\n";
      },
      what);
  return out;
}

}  // namespace keel
