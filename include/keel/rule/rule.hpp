// What a rule is. A rule names a combination that would waste a run. One of your own stands in the recipe like a policy:
//
//     struct Q01 {
//       static constexpr char const* id = "Q01";
//       static constexpr char const* text = "[Q01] our cluster loses a disk a day. Fix: keel::checkpoint::keep<2> or more.";
//       static constexpr bool broken(keel::config const& c) { return c.checkpoint.keep < 2; }
//     };
//     struct mine : keel::recipe<keel::checkpoint::every<500_steps>, Q01> {};
//
// The text says what cannot be together and why, and then, after "Fix: ", names that can be typed; at most 160 characters. The
// id is Q and digits, or two letters or more and digits, seven characters in all: one letter and two digits are keel's. The
// predicate is the same for the compiler, for the constructor, which fills config::run and the facts, and for what a rung can
// reach. With `static constexpr bool may_be_accepted = true;` the rule is a warning that keel::accept<"Q01"> switches off.
#pragma once

#include <concepts>
#include <keel/config/config.hpp>
#include <keel/policy/text.hpp>
#include <type_traits>

namespace keel::rule {

/// A list of rules.
template <class... Rules>
struct list {};

/// When a rule is decided.
enum class decided : unsigned char {
  recipe,        ///< by the compiler; at construction, with the facts of the model, optimizer and run, once more
  construction,  ///< when a trainer or step is built, because the compiler cannot know it
  call,          ///< by the compiler, where the call stands: what is forbidden is an order or an argument
  running,       ///< while the run goes on
  never,         ///< cannot happen in keel, and a test proves it
  absent,        ///< speaks of a policy that keel does not have
  later,         ///< waits for a mechanism that this version does not have
};

/// A rule that judges a configuration, as the head of this header shows one.
template <class Rule>
concept value_rule = requires(config const& value) {
  { Rule::broken(value) } -> std::same_as<bool>;
  // Constants: of a member that is not static, or not constexpr, g++ 12 would make hard errors further on.
  { *&Rule::id } -> std::convertible_to<char const*>;
  { *&Rule::text } -> std::convertible_to<char const*>;
  // By its letters: under sanitizers g++ 12 takes a comparison with nullptr for no constant.
  requires std::bool_constant<(Rule::id[0] != '\0' && Rule::text[0] != '\0')>::value;
  typename std::bool_constant<(Rule::broken(config{}), true)>;
};

/// A type that was meant as a rule: it has a part of one.
template <class Type>
concept resembles_rule = requires { &Type::broken; } || requires {
  &Type::id;
  &Type::text;
};

/// True for a rule that keel::accept may switch off.
template <class Rule>
inline constexpr bool may_be_accepted = requires { requires Rule::may_be_accepted; };

/// Products and sums that end at the largest number: a file may hold any.
constexpr long long product(long long a, long long b) {
  long long result = 0;
  if (!__builtin_mul_overflow(a, b, &result)) return result;
  return (a < 0) == (b < 0) ? 0x7fffffffffffffffLL : -0x7fffffffffffffffLL;
}
/// As product().
constexpr long long sum(long long a, long long b) {
  long long result = 0;
  if (!__builtin_add_overflow(a, b, &result)) return result;
  return a > 0 ? 0x7fffffffffffffffLL : -0x7fffffffffffffffLL;
}

/// The longest sentence, in characters.
inline constexpr int longest_text = 160;

/// True for letters and then digits, such as A01, and the grammar "[ID] what and why. Fix: what to type."
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

/// One letter and two digits are keel's, but for Q.
constexpr bool is_id_of_keel(rule_id id) {
  auto const letter = static_cast<char>(id.packed >> 16 & 0xff);
  auto const first = static_cast<char>(id.packed >> 8 & 0xff);
  auto const second = static_cast<char>(id.packed & 0xff);
  bool const digits = first >= '0' && first <= '9' && second >= '0' && second <= '9';
  return id.packed >> 24 == 0 && letter >= 'A' && letter <= 'Z' && letter != 'Q' && digits;
}

/// What is wrong with the run may send it back to a checkpoint.
constexpr bool rolls_back(config const& c) {
  return c.nonfinite.kind == nonfinite::kind::rollback || c.spike.kind == spike::kind::rollback;
}

/// Several ranks, as far as it is known.
constexpr bool several_ranks(config const& c) {
  return c.shard.kind != shard::kind::none || c.run.world_size > 1 || c.world.ranks > 1;
}

/// The ladder has a rung that cuts micro-batches, and so sums more of them.
constexpr bool halves(config const& c) {
  for (int i = 0; i < c.oom.count; ++i) {
    if (c.oom.rungs[i].kind == oom::rung_kind::halve_micro_batch) return true;
  }
  return false;
}

}  // namespace keel::rule
