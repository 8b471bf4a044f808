// accept<"B06">: the recipe knows that it breaks a rule and goes on. Only for rules whose table row says that they may be
// accepted (keel/rule/README.md), one at a time and by name, so that a reader of the recipe sees it. Accepting any other
// rule, or one that the recipe does not break, is an error itself (D22, D23, D24).
#pragma once

namespace keel {

/// The id of a rule as a template argument: up to eight letters in one number.
struct rule_id {
  unsigned long long packed = 0;  ///< the letters, the last one in the lowest byte

  constexpr rule_id() = default;
  /// Of longer words the end counts: no rule has that name, which D22 says.
  constexpr rule_id(char const* text) {
    for (; *text != '\0'; ++text) packed = packed << 8 | static_cast<unsigned char>(*text);
  }
  friend constexpr bool operator==(rule_id const&, rule_id const&) = default;
};

/// Stands in a recipe and lets it break the rule with this id.
template <rule_id Id>
struct accept {
  static constexpr rule_id accepted_rule = Id;  ///< the rule
};

/// How many rules one recipe may accept.
inline constexpr int max_accepted = 8;

}  // namespace keel
