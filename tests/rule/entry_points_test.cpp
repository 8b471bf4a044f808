#include <keel/json/load_config.hpp>
#include <keel/recipe.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

using namespace keel::literals;

namespace {

template <int Number>
struct sampled;
#include "sampled_recipes.inc"

/// Of the ladders that generate_recipes.cpp writes.
constexpr int longest_ladder = 3;

/// A rule's id from the class whose static_assert would speak.
struct spoken {
  char const* id = nullptr;
  keel::origin from = keel::origin::recipe;
  int number = 0;
  friend bool operator==(spoken const& a, spoken const& b) {
    return std::string(a.id) == b.id && a.from == b.from && a.number == b.number;
  }
};

template <class Recipe, class Demand, class Rule>
constexpr void find_in_rule(spoken& found) {
  using named = typename decltype(keel::detail::named_by<Rule, Recipe>())::type;
  if constexpr (std::is_same_v<Demand, keel::rule::demand<Rule, false, named>>) found = {Rule::id};
  if constexpr ((Rule::has_words_for & 2) != 0) {
    [&]<int... Rung>(std::integer_sequence<int, Rung...>) {
      ((std::is_same_v<Demand, typename Rule::template reached_by_rung<false, Recipe, Rung + 1>>
            ? void(found = {Rule::id, keel::origin::rung, Rung + 1})
            : void()),
       ...);
    }
    (std::make_integer_sequence<int, longest_ladder>{});
  }
  if constexpr ((Rule::has_words_for & 4) != 0) {
    if constexpr (std::is_same_v<Demand, typename Rule::template reached_by_rollback<false, Recipe>>) {
      found = {Rule::id, keel::origin::rollback};
    }
  }
  if constexpr ((Rule::has_words_for & 8) != 0) {
    if constexpr (std::is_same_v<Demand, typename Rule::template reached_by_floor<false, Recipe>>) {
      found = {Rule::id, keel::origin::floor};
    }
  }
}

template <class Recipe, class Demand, class... Rules>
constexpr spoken find_demand(keel::rule::list<Rules...>) {
  spoken found;
  (find_in_rule<Recipe, Demand, Rules>(found), ...);
  return found;
}

/// The errors that the compiler would print: the classes that keel::checked would inherit, named and not instantiated.
template <class Recipe>
std::vector<spoken> errors_of_compiler() {
  return []<int... Broken>(std::integer_sequence<int, Broken...>) {
    return std::vector<spoken>{find_demand<Recipe, keel::detail::demand_at<Recipe, keel::detail::at_recipe, Broken>>(
        keel::detail::judged_rules{})...};
  }
  (keel::detail::all_broken<Recipe, keel::detail::at_recipe>{});
}

std::vector<spoken> errors_of(keel::verdict const& verdict) {
  std::vector<spoken> all;
  for (keel::violation const& one : verdict) all.push_back({one.id, one.from, one.number});
  return all;
}

template <int Number>
void compare(std::set<std::string>& rules, int& valid) {
  using recipe = typename sampled<Number>::type;
  CAPTURE(Number, sampled<Number>::json);
  keel::config const from_file = keel::parse_config(sampled<Number>::json);
  REQUIRE(from_file == keel::config_of<recipe>);

  auto const at_compile_time = errors_of_compiler<recipe>();
  auto const at_run_time = errors_of(keel::check(from_file));
  REQUIRE(at_compile_time == at_run_time);
  REQUIRE(keel::valid<recipe> == at_run_time.empty());
  for (spoken const& one : at_run_time) rules.insert(one.id);
  valid += keel::valid<recipe> ? 1 : 0;
}

}  // namespace

TEST_CASE("the run-time door says of 250 random recipes just what the compiler says, rule for rule and rung for rung") {
  std::set<std::string> rules;
  int valid = 0;
  [&]<int... Number>(std::integer_sequence<int, Number...>) { (compare<Number>(rules, valid), ...); }
  (std::make_integer_sequence<int, sampled_count>{});
  CHECK(sampled_count >= 200);
  CHECK(valid > 20);
  CHECK(rules.size() > 50);
}
