// Whoever follows a rule's "Fix: .." is done: each thing that a text says to do is done here, as its words say it, and what comes
// of it breaks no rule at all. A text whose words change, and a fix that leads to the next error, do not compile. What a call
// breaks is typed by the twin of its case in must_not_compile/torch_cases; what a running program breaks, by its test.
#pragma once

#include <keel/recipe.hpp>
#include <string_view>

namespace fixed {

namespace rule = keel::rule;

/// One way out: the words of the text, the recipe of whoever followed them, as source and judged.
struct way {
  std::string_view words;
  std::string_view source;
  bool valid;
};
// The one thing that no function can do: read the source that it is given.
#define FIX(words, ...) \
  fixed::way { words, #__VA_ARGS__, keel::valid<keel::recipe<__VA_ARGS__>> }
// The same where the words also name what stands beside the recipe: an optimizer, a namespace.
#define FIX_BESIDE(words, beside, ...) \
  fixed::way { words, beside " " #__VA_ARGS__, keel::valid<keel::recipe<__VA_ARGS__>> }
// The same for a rule that is broken by what a run is started with.
#define FIX_IN_RUN(words, facts, ...) \
  fixed::way { words, #__VA_ARGS__, fixed::holds_in_run(keel::config_of<keel::recipe<__VA_ARGS__>>, facts) }

constexpr bool holds_in_run(keel::config c, keel::run_facts facts) {
  c.run = facts;
  c.run.known = true;
  return keel::check(c).ok();
}

template <int Count>
struct ways {
  way all[Count];
};
template <class... Ways>
constexpr ways<sizeof...(Ways)> said(Ways... each) {
  return {{each...}};
}

/// What the text of a rule says to do.
template <class Rule>
inline constexpr int fixes = 0;

constexpr std::string_view fix_of(std::string_view text) {
  constexpr std::string_view sign = ". Fix: ";
  return text.substr(text.find(sign) + sign.size());
}

constexpr bool contains(std::string_view text, std::string_view words) { return text.find(words) != std::string_view::npos; }

constexpr bool is_part_of_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == ':';
}

/// Calls `visit(name, with_arguments)` for each name with a "::" in it; the second is the same where its arguments stand for any.
template <class Visit>
constexpr bool for_each_name(std::string_view words, Visit visit) {
  for (std::size_t begin = 0; begin < words.size();) {
    std::size_t end = begin;
    while (end < words.size() && is_part_of_name(words[end])) ++end;
    std::string_view const name = words.substr(begin, end - begin);
    std::size_t after = end;
    if (after < words.size() && words[after] == '<') {
      ++after;
      while (after < words.size() && words[after] != '<' && words[after] != '>' && !(words[after] >= 'A' && words[after] <= 'Z') &&
             words.substr(after, 2) != "..")
        ++after;
      // An id is in capitals and stands for itself.
      if (after < words.size() && words[after - 1] == '"') after = words.find('>', after);
      after = after < words.size() && words[after] == '>' ? after + 1 : end;
    }
    if (contains(name, "::") && !visit(name, words.substr(begin, after - begin))) return false;
    begin = end + 1;
  }
  return true;
}

/// The recipe has what the words name, or lacks it where they say to remove it.
constexpr bool is_typed(way const& one) {
  bool const removed = one.words.substr(0, 7) == "remove " || contains(one.words, " not ");
  return for_each_name(one.words, [&](std::string_view name, std::string_view whole) {
    return removed ? !contains(one.source, name) : contains(one.source, whole);
  });
}

/// Each choice of the text has a way, and each name stands in one.
template <int Count>
constexpr bool covers(std::string_view fix, ways<Count> const& given) {
  constexpr std::string_view sign = " or ";
  for (std::size_t begin = 0; begin < fix.size();) {
    std::size_t const at = fix.find(sign, begin);
    std::size_t const end = at == std::string_view::npos ? fix.size() : at;
    bool found = false;
    for (way const& one : given.all) found = found || contains(fix.substr(begin, end - begin), one.words);
    if (!found) return false;
    begin = end == fix.size() ? end : end + sign.size();
  }
  return for_each_name(fix, [&](std::string_view name, std::string_view) {
    for (way const& one : given.all) {
      if (contains(one.words, name)) return true;
    }
    return false;
  });
}

template <class Rule, class Ways>
struct followed;
template <class Rule, int Count>
struct followed<Rule, ways<Count> const> {
  template <bool Test(way const&)>
  static constexpr bool all() {
    for (way const& one : fixes<Rule>.all) {
      if (!Test(one)) return false;
    }
    return true;
  }
  static constexpr bool is_said(way const& one) { return contains(fix_of(Rule::text), one.words); }
  static constexpr bool is_valid(way const& one) { return one.valid; }
  static_assert(all<is_said>(), "the text of this rule says something else");
  static_assert(all<is_typed>(), "the recipe is not what the words say");
  static_assert(covers(fix_of(Rule::text), fixes<Rule>), "the text names a way out that nobody has tried");
  static_assert(all<is_valid>(), "a fix of this rule leads to the next error");
};

template <class Family>
struct each_followed;
template <class... Rules>
struct each_followed<rule::list<Rules...>> : followed<Rules, decltype(fixes<Rules>)>... {};

}  // namespace fixed
