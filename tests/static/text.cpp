// The form of every rule's text: "[ID] what and why. Fix: names to type."
#include <keel/recipe.hpp>
#include <string_view>

namespace {

constexpr std::size_t longest_text = 160;

template <class Rule>
struct well_said {
  static constexpr std::string_view id = Rule::id;
  static constexpr std::string_view text = Rule::text;
  static constexpr bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

  static_assert(id.size() == 3 && id[0] >= 'A' && id[0] <= 'Z' && is_digit(id[1]) && is_digit(id[2]));
  static_assert(text.size() > 6 && text[0] == '[' && text.substr(1, 3) == id && text.substr(4, 2) == "] ");
  static_assert(text.find("Fix: ") != text.npos);
  static_assert(text.find("Fix: ") == text.rfind("Fix: "));
  static_assert(text.ends_with('.'));
  static_assert(text.size() <= longest_text);
};

template <class List>
struct each_well_said;
template <class... Rules>
struct each_well_said<keel::rule::list<Rules...>> : well_said<Rules>... {};
template struct each_well_said<keel::rule::catalogue>;
template struct each_well_said<keel::rule::order_rules>;

template <class Catalogue, class OrderRules>
struct unique_ids;
template <class... Rules, class... OrderRules>
struct unique_ids<keel::rule::list<Rules...>, keel::rule::list<OrderRules...>> {
  static constexpr std::string_view ids[] = {Rules::id..., OrderRules::id...};
  static constexpr bool hold() {
    for (std::string_view const& one : ids) {
      for (std::string_view const& other : ids) {
        if (&one != &other && one == other) return false;
      }
    }
    return true;
  }
};
static_assert(unique_ids<keel::rule::catalogue, keel::rule::order_rules>::hold());

// A value rule forbids a recipe, an order rule a call.
template <class List>
constexpr int value_rules = 0;
template <class... Rules>
constexpr int value_rules<keel::rule::list<Rules...>> = (0 + ... + (keel::rule::value_rule<Rules> ? 1 : 0));
static_assert(value_rules<keel::rule::catalogue> == keel::detail::count_rules(keel::rule::catalogue{}));
static_assert(value_rules<keel::rule::order_rules> == 0);

}  // namespace
