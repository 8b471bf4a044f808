// The form of every rule's text: "[ID] what and why. Fix: names to type."
#include <keel/recipe.hpp>
#include <keel/rule/every_rule.hpp>
#include <string_view>

namespace {

constexpr std::size_t longest_text = 160;
// A generated text that lists the policies of a slot.
constexpr std::size_t longest_list = 250;

// Letter by letter: under sanitizers g++ 12 takes std::string_view::find in a generated text for no constant.
constexpr int fixes_of(std::string_view text) {
  constexpr std::string_view word = "Fix: ";
  int fixes = 0;
  for (std::size_t start = 0; start + word.size() <= text.size(); ++start) {
    std::size_t same = 0;
    while (same < word.size() && text[start + same] == word[same]) ++same;
    fixes += same == word.size();
  }
  return fixes;
}
static_assert(fixes_of("") == 0 && fixes_of("Fix: a. Fix: b.") == 2 && fixes_of("Fix:") == 0);

template <class Rule>
struct well_formed {
  static constexpr std::string_view id = Rule::id;
  static constexpr std::string_view text = Rule::text;
  static constexpr bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

  static_assert(id.size() == 3 && id[0] >= 'A' && id[0] <= 'Z' && is_digit(id[1]) && is_digit(id[2]));
  static_assert(text.size() > 6 && text[0] == '[' && text.substr(1, 3) == id && text.substr(4, 2) == "] ");
  static_assert(fixes_of(text) == 1);
  static_assert(text.ends_with('.'));
  static constexpr bool is_list = requires { Rule::sentence; };
  static_assert(is_list || keel::rule::is_well_formed(Rule::id, Rule::text));
  // The longest that can come before it: "reached by rung 16 of oom::ladder: " and its like.
  static constexpr std::size_t prefix = (Rule::has_words_for & 2)   ? 35
                                        : (Rule::has_words_for & 4) ? 32
                                        : (Rule::has_words_for & 8) ? 30
                                                                    : 0;
  static_assert(prefix + text.size() <= (is_list ? longest_list : longest_text));
};

template <class List>
struct each_well_formed;
template <class... Rules>
struct each_well_formed<keel::rule::list<Rules...>> : well_formed<Rules>... {};

using keel::rule::every_rule;
template struct each_well_formed<every_rule>;

template <class List>
constexpr bool ids_are_unique = false;
template <class... Rules>
constexpr bool ids_are_unique<keel::rule::list<Rules...>> = [] {
  // As numbers: compilers count the steps of what they evaluate.
  constexpr auto number_of = [](std::string_view id) {
    unsigned long long number = 0;
    for (char const letter : id) number = number * 256 + static_cast<unsigned char>(letter);
    return number;
  };
  constexpr unsigned long long ids[] = {number_of(Rules::id)...};
  for (std::size_t i = 0; i < sizeof...(Rules); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (ids[i] == ids[j]) return false;
    }
  }
  return true;
}();
static_assert(ids_are_unique<every_rule>);

// A value rule forbids a recipe or a policy in it, an order or call rule a call.
template <class List>
constexpr bool are_value_rules = false;
template <class... Rules>
constexpr bool are_value_rules<keel::rule::list<Rules...>> = (keel::rule::value_rule<Rules> && ...);
template <class List>
constexpr bool has_value_rule = true;
template <class... Rules>
constexpr bool has_value_rule<keel::rule::list<Rules...>> = (keel::rule::value_rule<Rules> || ...);
static_assert(are_value_rules<keel::rule::catalogue>);
static_assert(are_value_rules<keel::rule::rules_not_implemented> && are_value_rules<keel::rule::trainer_only_rules>);
static_assert(!has_value_rule<keel::rule::order_rules>);

}  // namespace
