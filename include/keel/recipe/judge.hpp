// The loop over all rules that every entry point uses: determines which rules a configuration breaks, and which ones the run can reach.
#pragma once

#include <keel/config/reachable.hpp>
#include <keel/recipe/number_probes.hpp>
#include <keel/rule/catalogue.hpp>

namespace keel::detail {

/// A type-erased rule, so that one function checks any number of them without an instantiation per rule.
struct rule_entry {
  char const* id;
  bool (*broken)(config const&);
  int reached;  ///< bits by origin: other configurations that the rule checks
  bool may_be_accepted;
  bool may_be_about_anything;  ///< user-defined rule: the facts that could break it are unknown
};

/// One of keel's rules, which declares the origins that it has messages for. A user-defined rule checks all configurations.
template <class Rule>
concept rule_of_keel = requires { Rule::has_words_for; };

template <class Rule>
inline constexpr int rule_scope = ~0;
template <rule_of_keel Rule>
inline constexpr int rule_scope<Rule> = Rule::has_words_for;

constexpr int find_rule(rule_entry const* entries, int count, rule_id id) {
  for (int i = 0; i < count; ++i) {
    if (rule_id(entries[i].id) == id) return i;
  }
  return -1;
}

template <class List>
struct rule_table;
template <class... Rules>
struct rule_table<rule::list<Rules...>> {
  static constexpr int count = sizeof...(Rules);
  static constexpr rule_entry entries[count] = {
      {Rules::id, &Rules::broken, rule_scope<Rules>, rule::may_be_accepted<Rules>, !rule_of_keel<Rules>}...};
};

/// The messages, in a separate template: a compiler that finds no broken rule never instantiates it.
template <class List>
struct rule_texts;
template <class... Rules>
struct rule_texts<rule::list<Rules...>> {
  static constexpr char const* all[sizeof...(Rules)] = {Rules::text...};
};

/// keel's rules for every recipe. A recipe's custom rules are inserted between the two lists.
using judged_rules = typename rule::detail::joined<rule::catalogue, rule::accept_rules>::type;

constexpr bool is_accepted(config const& value, rule_entry const& entry) {
  return entry.may_be_accepted && value.accepts(entry.id);
}

/// Returns the configuration with the worst values of all facts about model, optimizer and batches, because an accepted rule may apply to
/// any of them. Ignores the facts of a particular model, because a recipe serves several.
constexpr config with_facts_to_come(config value) {
  value.model = value.model | model::settings{true, true, true, true, true, true, true, true, true, false};
  value.optimizer = value.optimizer | optimizer::settings{true, true, true, true, true};
  value.data.ragged = true;
  value.data.packed = true;
  value.data.token_weighted = false;
  return value;
}

constexpr bool can_be_broken(config const& value, rule_entry const& entry) {
  if (entry.broken(value)) return true;
  bool found = false;
  for_each_reachable(value, [&](config const& reached, origin, int) {
    found = found || entry.broken(reached);
    return !found;
  });
  return found;
}

/// Checks keel::accept against the list of rules: D22, D23 and D24, which are adjacent in it.
template <class List, class Report>
constexpr void judge_accepted(config const& value, Report&& report) {
  using table = rule_table<List>;
  int const first = find_rule(table::entries, table::count, "D22");
  if (first < 0) return;
  bool found[3] = {value.accepted_count > max_accepted, false, false};
  for (int i = 0; i < value.accepted_count && i < max_accepted; ++i) {
    int const named = find_rule(table::entries, table::count, value.accepted[i]);
    if (named < 0) {
      found[0] = true;
    } else if (!table::entries[named].may_be_accepted) {
      found[1] = true;
    } else if (!table::entries[named].may_be_about_anything &&
               !can_be_broken(with_facts_to_come(value), table::entries[named]) &&
               !can_be_broken(value, table::entries[named])) {
      found[2] = true;
    }
  }
  for (int i = 0; i < 3; ++i) {
    if (found[i]) report(first + i, origin::recipe, 0);
  }
}

/// Implements judge() for a configuration without open numbers.
template <class List, class Report>
constexpr void judge_whole(config const& value, Report&& report) {
  using table = rule_table<List>;
  bool settled[table::count] = {};
  for (int i = 0; i < table::count; ++i) {
    auto const& entry = table::entries[i];
    if (!entry.broken(value)) continue;
    settled[i] = true;
    if (!is_accepted(value, entry)) report(i, origin::recipe, 0);
  }
  if (value.accepted_count > 0) judge_accepted<List>(value, report);
  for_each_reachable(value, [&](config const& reached, origin from, int number) {
    for (int i = 0; i < table::count; ++i) {
      auto const& entry = table::entries[i];
      if ((entry.reached >> static_cast<int>(from) & 1) == 0 || settled[i]) continue;
      if (!entry.broken(reached)) continue;
      settled[i] = true;
      if (!is_accepted(value, entry)) report(i, from, number);
    }
    return true;
  });
}

/// Implements judge() for a configuration with open numbers: reports the rules that are broken for all numbers tried, which are a sample.
template <class List, class Report>
constexpr void judge_open(config const& value, Report&& report) {
  using table = rule_table<List>;
  struct verdict_so_far {
    int rule = 0;
    origin from = origin::recipe;
    int number = 0;
    bool is_broken = true;
  };
  verdict_so_far found[table::count] = {};
  int count = 0;
  judge_whole<List>(with_probe(value, 0), [&](int rule, origin from, int number) { found[count++] = {rule, from, number}; });
  int left = count;
  for (int probe = 1; left > 0 && probe < probe_count + related_probes; ++probe) {
    config const tried = with_probe(value, probe);
    bool accepting[table::count] = {};
    if (value.accepted_count > 0) judge_accepted<List>(tried, [&](int rule, origin, int) { accepting[rule] = true; });
    for (int i = 0; i < count; ++i) {
      if (!found[i].is_broken || accepting[found[i].rule]) continue;
      if (can_be_broken(tried, table::entries[found[i].rule])) continue;
      found[i].is_broken = false;
      --left;
    }
  }
  for (int i = 0; i < count; ++i) {
    if (found[i].is_broken) report(found[i].rule, found[i].from, found[i].number);
  }
}

/// Calls `report(index in List, origin, number)` once for every broken rule: first for those that the recipe itself breaks, in the order of
/// the list, then for those that only a reachable configuration breaks.
template <class List, class Report>
constexpr void judge(config const& value, Report&& report) {
  if (value.given > 0) {
    judge_open<List>(value, report);
  } else {
    judge_whole<List>(value, report);
  }
}

/// Returns the configuration with probe numbers, which break few rules, in place of open numbers.
constexpr config kinds_of(std::same_as<config> auto const& value) { return value.given == 0 ? value : with_probe(value, 0); }

}  // namespace keel::detail
