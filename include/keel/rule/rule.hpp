// A rule names a combination that would waste a run. A user-defined rule is listed in the recipe like a policy:
//
//     struct Q01 {
//       static constexpr char const* id = "Q01";
//       static constexpr char const* text = "[Q01] our cluster loses a disk a day. Fix: keel::checkpoint::keep<2> or more.";
//       static constexpr bool broken(keel::config const& c) { return c.checkpoint.keep < 2; }
//     };
//     struct mine : keel::recipe<keel::checkpoint::every<500_steps>, Q01> {};
//
// The text names the conflict and its reason, followed by "Fix: " and names that can be typed; at most 160 characters. The id is Q and
// digits, or two or more letters and digits, with at most seven characters. Ids of one letter and two digits are otherwise reserved for
// keel. The same predicate is used by the compiler, by the constructor, which sets config::run and the facts, and for the configurations
// that a rung can reach. With `static constexpr bool may_be_accepted = true;` the rule is a warning that keel::accept<"Q01"> suppresses.
#pragma once

#include <concepts>
#include <keel/config/config.hpp>
#include <keel/policy/text.hpp>
#include <type_traits>

namespace keel::rule {

/// A list of rules.
template <class... Rules>
struct list {};

/// When a rule is checked.
enum class decided : unsigned char {
  recipe,        ///< by the compiler, and again at construction with the facts of the model, optimizer and run
  construction,  ///< when a trainer or step is constructed, because the compiler cannot know it
  call,          ///< by the compiler, at a call: the rule forbids an order or an argument
  running,       ///< during the run
  never,         ///< cannot occur in keel, as a test proves
  absent,        ///< about a policy that keel does not have
  later,         ///< needs a mechanism that this version does not have
};

/// A rule that checks a configuration; see the example at the top of this header.
template <class Rule>
concept value_rule = requires(config const& value) {
  { Rule::broken(value) } -> std::same_as<bool>;
  // Must be constants: for a non-static or non-constexpr member g++ 12 would report hard errors later.
  { *&Rule::id } -> std::convertible_to<char const*>;
  { *&Rule::text } -> std::convertible_to<char const*>;
  // Compares letters: under sanitizers g++ 12 does not accept a comparison with nullptr as a constant expression.
  requires std::bool_constant<(Rule::id[0] != '\0' && Rule::text[0] != '\0')>::value;
  typename std::bool_constant<(Rule::broken(config{}), true)>;
};

/// A type that resembles a rule: it has at least one member of one.
template <class Type>
concept resembles_rule = requires { &Type::broken; } || requires {
  &Type::id;
  &Type::text;
};

/// True for a rule that keel::accept may suppress.
template <class Rule>
inline constexpr bool may_be_accepted = requires { requires Rule::may_be_accepted; };

/// Returns the product; saturates instead of overflowing, because a file may contain any number.
constexpr long long product(long long a, long long b) {
  long long result = 0;
  if (!__builtin_mul_overflow(a, b, &result)) return result;
  return (a < 0) == (b < 0) ? 0x7fffffffffffffffLL : -0x7fffffffffffffffLL;
}
/// Returns the sum; saturates as product().
constexpr long long sum(long long a, long long b) {
  long long result = 0;
  if (!__builtin_add_overflow(a, b, &result)) return result;
  return a > 0 ? 0x7fffffffffffffffLL : -0x7fffffffffffffffLL;
}

/// Maximum length of a text, in characters.
inline constexpr int longest_text = 160;

/// Returns true if the id consists of letters and digits, such as A01, and the text follows the grammar "[ID] what and why. Fix: what to
/// type."
constexpr bool is_well_formed(char const* id, char const* text) {
  int letters = 0;
  while (id[letters] >= 'A' && id[letters] <= 'Z') ++letters;
  int end = letters;
  while (id[end] >= '0' && id[end] <= '9') ++end;
  bool const id_is_sound = letters > 0 && end > letters && id[end] == '\0' && end < 8;
  return id_is_sound && text[0] == '[' && keel::detail::begins_with(text + 1, id) &&
         keel::detail::begins_with(text + 1 + end, "] ") && keel::detail::contains(text, ". Fix: ") &&
         keel::detail::length(text) <= longest_text;
}

/// True for ids of one letter and two digits, which are reserved for keel, except those with Q.
constexpr bool is_id_of_keel(rule_id id) {
  auto const letter = static_cast<char>(id.packed >> 16 & 0xff);
  auto const first = static_cast<char>(id.packed >> 8 & 0xff);
  auto const second = static_cast<char>(id.packed & 0xff);
  bool const digits = first >= '0' && first <= '9' && second >= '0' && second <= '9';
  return id.packed >> 24 == 0 && letter >= 'A' && letter <= 'Z' && letter != 'Q' && digits;
}

/// True if a non-finite value or a spike may roll the run back to a checkpoint.
constexpr bool rolls_back(config const& c) {
  return c.nonfinite.kind == nonfinite::kind::rollback || c.spike.kind == spike::kind::rollback;
}

/// True if the recipe is known to use several ranks.
constexpr bool several_ranks(config const& c) {
  return c.shard.kind != shard::kind::none || c.run.world_size > 1 || c.world.ranks > 1;
}

/// True if the ladder has a rung that halves micro-batches, which also accumulates more of them.
constexpr bool halves(config const& c) {
  for (int i = 0; i < c.oom.count; ++i) {
    if (c.oom.rungs[i].kind == oom::rung_kind::halve_micro_batch) return true;
  }
  return false;
}

}  // namespace keel::rule
