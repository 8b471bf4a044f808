// Prints include/keel/rule/README.md from the rules themselves; with --proofs the tests that rows without a predicate name, one a line.
#include <algorithm>
#include <iostream>
#include <keel/rule/every_rule.hpp>
#include <keel/rule/rules_without_predicate.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace rule = keel::rule;

struct row {
  std::string id;
  std::string what;
  std::string fix;
  std::string decided;
  std::string passes;
};

std::string in_words(rule::decided when) {
  switch (when) {
    case rule::decided::recipe:
      return "compiler, construction";
    case rule::decided::construction:
      return "construction";
    case rule::decided::call:
      return "compiler, at the call";
    case rule::decided::running:
      return "while running";
    case rule::decided::never:
      return "cannot happen";
    case rule::decided::absent:
      return "no such policy";
    case rule::decided::later:
      return "not yet";
  }
  return "";
}

template <class Rule>
rule::decided decided_of() {
  if constexpr (requires { Rule::decided; }) {
    return Rule::decided;
  } else {
    return requires(keel::config const& c) { Rule::broken(c); }
    ? rule::decided::recipe : rule::decided::call;
  }
}

/// A cell of a table: a bar would end it.
std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

template <class Rule>
row row_of() {
  std::string const text = Rule::text;
  std::size_t const begin = text.find("] ") + 2;
  std::size_t const fix = text.find(" Fix: ");
  std::string decided = in_words(decided_of<Rule>());
  if (rule::may_be_accepted<Rule>) decided += "; may be accepted";
  return {Rule::id, text.substr(begin, fix - begin), text.substr(fix + 6), decided, Rule::passes};
}

template <class... Rules>
std::vector<row> rows_of(rule::list<Rules...>) {
  return {row_of<Rules>()...};
}

struct family {
  char letter;
  char const* title;
};
constexpr family families[] = {{'D', "The list of policies itself"},
                               {'P', "Precision and loss scale"},
                               {'G', "Clipping and the order of a step"},
                               {'N', "Non-finite values, spikes, agreement"},
                               {'S', "Checkpoints and resume"},
                               {'B', "Batches, accumulation, groups"},
                               {'A', "Recompute"},
                               {'Z', "Sharding and offload"},
                               {'O', "The out-of-memory ladder"},
                               {'L', "Schedules"},
                               {'X', "Profiler and device"},
                               {'M', "Moving averages, quantised bases"},
                               {'T', "Packing"},
                               {'E', "Evaluation"},
                               {'W', "The world"},
                               {'H', "Timeouts"},
                               {'Y', "Metrics"},
                               {'U', "What this version cannot run yet, and calls that nothing would serve"}};

int print_table() {
  auto rows = rows_of(rule::every_rule{});
  std::sort(rows.begin(), rows.end(), [](row const& a, row const& b) { return a.id < b.id; });
  std::size_t printed = 0;
  std::cout << "# The rules\n\n"
               "Generated from the rules by `tests/house/rule_table.sh --write`; a test compares. A rule's text is what the "
               "compiler\n"
               "says, after its id and before its fix. *Compiler, construction*: `keel::checked<recipe>`, a trainer and "
               "`keel::check`\n"
               "ask the same predicate, a trainer once more with what only it knows. *May be accepted*: `keel::accept<\"ID\">` "
               "in the\n"
               "recipe. A rule that a rung of the ladder, a rollback or the loss scale's floor can break is asked there too. "
               "The last\n"
               "column names systems that let the combination pass, silently or with a warning, where we looked; LibTorch "
               "where it can\n"
               "be written by hand. Rules of your own: `rule.hpp` in this folder.\n";
  for (family const& one : families) {
    std::cout << "\n## " << one.letter << ": " << one.title
              << "\n\n| id | what is rejected | fix | decided by | lets it pass today |\n"
              << "|---|---|---|---|---|\n";
    for (row const& r : rows) {
      if (r.id[0] != one.letter) continue;
      ++printed;
      std::cout << "| " << r.id << " | " << cell(r.what) << " | " << cell(r.fix) << " | " << r.decided << " | "
                << (r.passes.empty() ? "" : r.passes) << " |\n";
    }
  }
  std::cout << "\n## Rows that need no predicate\n\nCombinations of the field's catalogue that a recipe of keel cannot break, "
               "or not yet.\n\n"
               "| id | why | decided by | test | lets it pass today |\n|---|---|---|---|---|\n";
  for (auto const& r : rule::rules_without_predicate) {
    std::cout << "| " << r.id << " | " << cell(r.words) << " | " << in_words(r.decided) << " | " << cell(r.proof) << " | "
              << r.passes << " |\n";
  }
  if (printed == rows.size()) return 0;
  std::cerr << "a rule's family has no title in rule_table.cpp\n";
  return 1;
}

int print_proofs() {
  for (auto const& r : rule::rules_without_predicate) {
    bool const proven = *r.proof != '\0';
    if (proven != (r.decided == rule::decided::never)) {
      std::cerr << r.id << ": just the rows that cannot happen name a test\n";
      return 1;
    }
    if (proven) std::cout << r.proof << "\n";
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  bool const proofs = count > 1 && std::string_view(arguments[1]) == "--proofs";
  return proofs ? print_proofs() : print_table();
}
