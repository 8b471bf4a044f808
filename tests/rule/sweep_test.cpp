#include <array>
#include <string>
#include <vector>

#include "catch.hpp"
#include "random_config.hpp"

namespace {

using keel::config;
using keel::origin;
using keel::violation;
namespace detail = keel::detail;
using table = detail::rule_table<detail::judged_rules>;

constexpr int swept = 120'000;

config configuration(int number) {
  // From nearly empty recipes, which break one rule if any, to ones that break a dozen.
  static constexpr double keep[] = {0.95, 0.9, 0.8, 0.6, 0.3};
  keel_test::random_config random(static_cast<std::uint64_t>(number) + 1);
  return random.next(keep[number % 5]);
}

/// These judge the ladder as a whole; of one that was climbed the rungs that were taken are gone.
bool is_about_the_whole_ladder(keel::detail::rule_entry const& rule) {
  std::string const id = rule.id;
  return id == "O05" || id == "O06" || id == "O08" || id == "O22";
}

/// What the predicates say one by one, without the judge: the recipe first, then what it can reach.
std::vector<violation> one_by_one(config const& c) {
  std::vector<violation> found;
  std::array<bool, table::count> settled{};
  for (int i = 0; i < table::count; ++i) {
    auto const& rule = table::entries[i];
    settled[static_cast<std::size_t>(i)] = rule.broken(c);
    if (rule.broken(c) && !(rule.may_be_accepted && c.accepts(rule.id))) found.push_back({rule.id, keel::detail::rule_texts<keel::detail::judged_rules>::all[i]});
  }
  keel::for_each_reachable(c, [&](config const& reached, origin from, int number) {
    for (int i = 0; i < table::count; ++i) {
      auto const& rule = table::entries[i];
      bool& done = settled[static_cast<std::size_t>(i)];
      if (done || is_about_the_whole_ladder(rule) || !rule.broken(reached)) continue;
      done = true;
      if (!(rule.may_be_accepted && c.accepts(rule.id))) found.push_back({rule.id, keel::detail::rule_texts<keel::detail::judged_rules>::all[i], from, number});
    }
    return true;
  });
  return found;
}

bool is_about_accepting(violation const& one) {
  std::string const id = one.id;
  return id == "D22" || id == "D23" || id == "D24";
}

}  // namespace

TEST_CASE("every predicate is hit both ways by random configurations, and so is every reached one") {
  std::array<int, table::count> broken{};
  std::array<std::array<int, 4>, table::count> reached{};
  std::array<int, 3> accepting{};
  for (int number = 0; number < swept; ++number) {
    config const c = configuration(number);
    for (int i = 0; i < table::count; ++i) broken[static_cast<std::size_t>(i)] += table::entries[i].broken(c) ? 1 : 0;
    for (violation const& one : keel::check(c)) {
      std::string const id = one.id;
      if (is_about_accepting(one)) ++accepting[static_cast<std::size_t>(id[2] - '2')];
      for (int i = 0; i < table::count; ++i) {
        if (id == table::entries[i].id) ++reached[static_cast<std::size_t>(i)][static_cast<std::size_t>(one.from)];
      }
    }
  }
  for (int i = 0; i < table::count; ++i) {
    auto const at = static_cast<std::size_t>(i);
    std::string const id = table::entries[i].id;
    CAPTURE(id, broken[at]);
    if (id == "D22" || id == "D23" || id == "D24") {
      CHECK(accepting[static_cast<std::size_t>(id[2] - '2')] > 0);
      continue;
    }
    CHECK(broken[at] > 0);
    CHECK(broken[at] < swept);
    for (int from = 1; from < 4; ++from) {
      CAPTURE(from);
      bool const has_words = (table::entries[i].reached >> from & 1) != 0;
      CHECK((reached[at][static_cast<std::size_t>(from)] > 0) == has_words);
    }
  }
}

TEST_CASE("the verdict is what the predicates say one by one, and no rule without words for it is reached") {
  for (int number = 0; number < swept; ++number) {
    config const c = configuration(number);
    auto const expected = one_by_one(c);
    std::vector<violation> found;
    for (violation const& one : keel::check(c)) {
      if (!is_about_accepting(one)) found.push_back(one);
    }
    bool same = found.size() == expected.size();
    for (std::size_t i = 0; same && i < found.size(); ++i) {
      same = std::string(found[i].id) == expected[i].id && found[i].from == expected[i].from &&
             found[i].number == expected[i].number;
    }
    if (same) continue;
    std::string words;
    for (auto const& one : expected) words += std::string(keel::describe(one).c_str()) + "\n";
    words += "but the verdict has\n";
    for (auto const& one : found) words += std::string(keel::describe(one).c_str()) + "\n";
    FAIL("configuration " << number << "\n" << keel::describe(c).c_str() << words);
  }
}

TEST_CASE("rungs, a rollback and the floor together reach no broken rule that they do not reach one by one") {
  int compared = 0;
  for (int number = 0; number < swept; ++number) {
    config const c = configuration(number);
    std::array<bool, table::count> alone{};
    std::array<bool, table::count> together{};
    auto const mark = [](config const& reached, std::array<bool, table::count>& into) {
      for (int i = 0; i < table::count; ++i) into[static_cast<std::size_t>(i)] |= table::entries[i].broken(reached);
    };
    mark(c, alone);
    keel::for_each_reachable(c, [&](config const& first, origin first_from, int) {
      mark(first, alone);
      keel::for_each_reachable(first, [&](config const& second, origin second_from, int) {
        // Twice the same is what the first alone walks through already.
        if (second_from == first_from || second_from == origin::rung) return true;
        // A rung and the floor may come with all rollbacks, which leave no further one.
        if (first.run.learning_rate != c.run.learning_rate && second.run.learning_rate != first.run.learning_rate) return true;
        mark(second, together);
        ++compared;
        return true;
      });
      return true;
    });
    for (int i = 0; i < table::count; ++i) {
      auto const at = static_cast<std::size_t>(i);
      if (together[at] && !alone[at]) FAIL("configuration " << number << ": " << keel::detail::rule_texts<keel::detail::judged_rules>::all[i]);
    }
  }
  CHECK(compared > 10'000);
}
