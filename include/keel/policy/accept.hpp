// accept<"B06">: lets the recipe break a rule deliberately. Only rules that the table in keel/rule/README.md marks as acceptable can be
// accepted, one at a time and by name, so that a reader of the recipe sees each exception. Accepting any other rule, or one that the recipe
// does not break, is itself an error (D22, D23, D24).
#pragma once

namespace keel {

/// The id of a rule as a template argument: up to eight letters in one number.
struct rule_id {
  unsigned long long packed = 0;  ///< the letters, the last one in the lowest byte

  constexpr rule_id() = default;
  /// Keeps only the last eight letters of a longer text; no rule has such an id, so D22 reports it.
  constexpr rule_id(char const* text) {
    for (; *text != '\0'; ++text) packed = packed << 8 | static_cast<unsigned char>(*text);
  }
  friend constexpr bool operator==(rule_id const&, rule_id const&) = default;
};

/// Lets the recipe that contains it break the rule with this id.
template <rule_id Id>
struct accept {
  static constexpr rule_id accepted_rule = Id;  ///< id of the accepted rule
};

/// Maximum number of rules that one recipe may accept.
inline constexpr int max_accepted = 8;

}  // namespace keel
