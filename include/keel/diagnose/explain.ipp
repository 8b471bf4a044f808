// Definitions for explain.hpp.
#pragma once

#include <algorithm>
#include <cctype>
#include <cmath>
#include <keel/diagnose/explain.hpp>
#include <keel/diagnose/guide.hpp>
#include <keel/diagnose/page_text.hpp>
#include <keel/rule/every_rule.hpp>
#include <map>
#include <set>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Splits text into lower-case words without plural and other endings.
KEEL_BODY std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> found;
  std::string word;
  auto const end = [&] {
    for (char const* const ending : {"ing", "es", "ed", "s"}) {
      std::string_view const view(ending);
      if (word.size() > view.size() + 2 && word.ends_with(view)) {
        word.resize(word.size() - view.size());
        break;
      }
    }
    bool const is_number = !word.empty() && std::isdigit(static_cast<unsigned char>(word[0])) != 0;
    if (word.size() > 1 || is_number) found.push_back(word);
    word.clear();
  };
  for (char const c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else {
      end();
    }
  }
  end();
  return found;
}

KEEL_BODY explanation of_entry(guide_entry const& entry) {
  return {entry.seen, joined(entry.causes), joined(fixes_of(entry.causes)), entry.keel};
}

template <class Rule>
explanation of_rule() {
  std::string const text = Rule::text;
  auto const fix = text.find(" Fix: ");
  explanation one;
  one.seen = text.substr(0, fix);
  if (fix != std::string::npos) one.fix = text.substr(fix + 6);
  one.keel = "the compiler or the constructor of a step or trainer rejects it";
  return one;
}
template <class... Rules>
std::vector<std::pair<std::string, explanation>> rules_explained(rule::list<Rules...>) {
  return {{std::string(Rules::id), of_rule<Rules>()}...};
}

/// Returns the id, "A01" for "[A01]" or "a01"; empty for anything else.
KEEL_BODY std::string id_in(std::string_view words) {
  std::string id;
  for (char const c : words) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) id += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  bool const is_id = id.size() == 3 && std::isalpha(static_cast<unsigned char>(id[0])) != 0 &&
                     std::isdigit(static_cast<unsigned char>(id[1])) != 0 &&
                     std::isdigit(static_cast<unsigned char>(id[2])) != 0;
  return is_id ? id : "";
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY std::vector<explanation> explain(std::string_view words, std::size_t most) {
  auto const rules = detail::rules_explained(rule::every_rule{});
  std::string const id = detail::id_in(words);
  if (!id.empty()) {
    std::vector<explanation> found;
    for (guide_entry const& entry : guide()) {
      if (std::string_view(entry.seen) == id) found.push_back(detail::of_entry(entry));
    }
    for (guide_entry const& entry : guide()) {
      if (std::string_view(entry.seen).find("[" + id + "]") != std::string_view::npos) found.push_back(detail::of_entry(entry));
    }
    for (auto const& [of, one] : rules) {
      if (of == id) found.push_back(one);
    }
    return found;
  }
  struct candidate {
    explanation one;
    std::set<std::string> in_seen;
    std::set<std::string> in_rest;
    double weight;
    double score = 0.0;
    double covered = 0.0;  ///< words of the query that `in_seen` contains
  };
  std::vector<candidate> all;
  auto const add = [&](explanation one, double weight) {
    auto const seen = detail::split_words(one.seen);
    auto const rest = detail::split_words(one.cause + " " + one.fix + " " + one.keel);
    all.push_back({std::move(one), {seen.begin(), seen.end()}, {rest.begin(), rest.end()}, weight});
  };
  // Entries of the guide rank above rules: symptoms are searched for more often than the text of a rule, which
  // is printed wherever the rule is broken.
  for (guide_entry const& entry : guide()) add(detail::of_entry(entry), 1.0);
  for (auto const& [of, one] : rules) add(one, 0.6);
  auto const asked = detail::split_words(words);
  for (std::string const& word : std::set<std::string>(asked.begin(), asked.end())) {
    double occurs = 0.0;
    for (candidate const& one : all) occurs += static_cast<double>(one.in_seen.count(word) + one.in_rest.count(word));
    if (occurs == 0.0) continue;
    // Rare words weigh more (Spaerck Jones 1972).
    double const weight = std::log(1.0 + static_cast<double>(all.size()) / occurs);
    for (candidate& one : all) {
      auto const seen = static_cast<double>(one.in_seen.count(word));
      one.score += one.weight * weight * (2.0 * seen + static_cast<double>(one.in_rest.count(word)));
      one.covered += seen;
    }
  }
  for (candidate& one : all) one.score *= 1.0 + one.covered / static_cast<double>(std::max<std::size_t>(one.in_seen.size(), 1));
  std::stable_sort(all.begin(), all.end(), [](candidate const& a, candidate const& b) { return a.score > b.score; });
  std::vector<explanation> found;
  for (candidate& one : all) {
    // An entry with less than half of the best score is about another subject.
    if (found.size() == most || one.score <= 0.0 || one.score < 0.5 * all.front().score) break;
    found.push_back(std::move(one.one));
  }
  return found;
}

KEEL_BODY std::string to_text(explanation const& one) {
  std::string text = one.seen + "\n";
  if (!one.cause.empty()) text += "  because:  " + one.cause + "\n";
  if (!one.fix.empty()) text += "  fix:      " + one.fix + "\n";
  if (!one.keel.empty()) text += "  in keel:  " + one.keel + "\n";
  return text;
}

KEEL_BODY std::string guide_page() {
  std::string page;
  std::string family;
  for (guide_entry const& entry : guide()) {
    if (entry.family != family) {
      family = entry.family;
      page += "\n### " + family + "\n\n| seen | cause | fix | in keel |\n|---|---|---|---|\n";
    }
    explanation const one = detail::of_entry(entry);
    page += "| " + one.seen + " | " + one.cause + " | " + one.fix + " | " + one.keel + " |\n";
  }
  page +=
      "\n### Causes and their fixes\n\nTriage distinguishes those with evidence.\n\n| family | cause | evidence | fix "
      "|\n|---|---|---|---|\n";
  for (trouble_facts const& one : all_troubles)
    page +=
        std::string("| ") + to_string(one.family) + " | " + one.name + " | " + one.fields + " | " + joined(one.fixes) + " |\n";
  return page;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
