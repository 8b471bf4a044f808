// Which family of trouble a run is in: one planted run of each kind of fault, healthy runs, and records written by hand.
#include <keel/diagnose/explain.hpp>
#include <keel/diagnose/triage.hpp>
#include <set>

#include "planted_faults.hpp"

using namespace keel_test;
using keel::triage_verdict;
using keel::trouble;

namespace {

std::vector<trouble> causes_of(keel::triage_result const& found) {
  std::vector<trouble> causes;
  for (auto const& one : found.findings) causes.push_back(one.cause);
  return causes;
}

struct one_thread {
  int before = at::get_num_threads();
  one_thread() { at::set_num_threads(1); }
  ~one_thread() { at::set_num_threads(before); }
};

template <class Planted>
keel::triage_result judged(Planted const& one) {
  one_thread const alone;
  scratch_directory directory;
  planted::plan plan;
  plan.directory = directory.path();
  plan.kind = one.kind;
  plan.seed = one.seed;
  one.run(plan);
  return keel::triage(directory.path());
}

}  // namespace

// The whole of it, and all kinds of model: benchmarks/run triage/family triage/cause.
TEST_CASE("of each cause a planted run is judged rightly: the family first, the cause among the first two") {
  std::set<trouble> seen;
  for (planted::incident const& one : planted::incidents()) {
    // What the system holds of a process that has run other tests says nothing about this run.
    if (one.cause == trouble::fragmentation) continue;
    if (!seen.insert(one.cause).second) continue;
    keel::triage_result const found = judged(one);
    INFO(keel::facts_about(one.cause).name << ", " << one.name << ": " << keel::to_text(found));
    auto const causes = causes_of(found);
    REQUIRE_FALSE(causes.empty());
    CHECK(keel::facts_about(causes[0]).family == keel::facts_about(one.cause).family);
    CHECK((causes[0] == one.cause || (causes.size() > 1 && causes[1] == one.cause)));
    for (auto const& finding : found.findings) {
      CHECK_FALSE(finding.evidence.empty());
      CHECK(finding.confidence <= 1.0);
    }
  }
  CHECK(seen.size() == keel::all_troubles().size() - 1);
}

TEST_CASE("no run that is as it should be is in trouble") {
  std::set<std::string> seen;
  for (planted::healthy_run const& one : planted::healthy_runs()) {
    if (!seen.insert(one.name).second) continue;
    keel::triage_result const found = judged(one);
    INFO(one.name << ": " << keel::to_text(found));
    CHECK(found.verdict == triage_verdict::healthy);
    CHECK(found.findings.empty());
  }
}

TEST_CASE("a run that has just begun is not judged, and a directory without a record is named") {
  scratch_directory directory;
  CHECK_THROWS_WITH(keel::triage(directory.path()), Catch::Matchers::Contains("[E02]"));
  planted::plan plan;
  plan.directory = directory.path();
  plan.updates = 12;
  planted::train<planted::usual>(plan);
  keel::triage_result const found = keel::triage(directory.path());
  CHECK(found.verdict == triage_verdict::not_enough_data);
  CHECK(found.updates == 12);
  CHECK(keel::to_text(found).find("not enough data: 12 updates") == 0);
}

TEST_CASE("a record that is damaged, cut off or of another hand is judged as far as it goes") {
  scratch_directory directory;
  std::string lines;
  for (int i = 1; i <= 80; ++i) {
    lines += nlohmann::json({{"update", i}, {"attempt", i}, {"epoch", 0}, {"loss", i % 7 == 0 ? nlohmann::json("nan") : nlohmann::json(2.0 / i)},
                             {"gradient_norm", "inf"}, {"memory", 3}, {"time", "?"}, {"batch", 7}})
                 .dump() +
             "\n";
  }
  write_file(directory / "metrics.jsonl", lines + "{\"update\": 81, \"lo");
  write_file(directory / "events.jsonl",
             "{\"event\":\"begins\",\"update\":0,\"parameters\":\"many\"}\n{\"event\":\"resumed\",\"update\":3,\"state\":7}\n"
             "{\"event\":\"begins\",\"update\":3,\"state\":[]}\n{\"event\":\"rung\",\"memory\":\"?\"}\n{\"event\":\"incident\",\"origin\":3}\n"
             "{\"event\":\"evaluated\",\"values\":{\"loss\":\"nan\"}}\n{\"event\":5}\nnot json\n");
  write_file(directory / "layers.jsonl", "{\"update\":9,\"layers\":{\"a\":{\"grad_norm\":\"nan\",\"update_ratio\":-1,\"param_norm\":[]}}}\n");
  std::filesystem::create_directories(directory / "ranks");
  write_file(directory / "ranks/0.jsonl", "{\"event\":\"collective\",\"sequence\":\"x\"}\n[]\n{\"event\":\"joi");
  write_file(directory / "ranks/readme.jsonl", "x");
  CHECK_NOTHROW(keel::to_text(keel::triage(directory.path())));
  write_file(directory / "metrics.jsonl", "");
  CHECK_NOTHROW(keel::triage(directory.path()));
}

TEST_CASE("four ranks that go on are no hang") {
  scratch_directory directory;
  planted::write_ranks(directory.path(), planted::sound_ranks(25, 3));
  CHECK(keel::triage(directory.path()).verdict != triage_verdict::in_trouble);
  // One of them is a little behind, as one always is.
  auto ranks = planted::sound_ranks(25, 4);
  for (int line = 0; line < 3; ++line) ranks[1].pop_back();
  planted::write_ranks(directory.path(), ranks);
  CHECK(keel::triage(directory.path()).verdict != triage_verdict::in_trouble);
}

TEST_CASE("every cause has a name, fields and something to do, and stands in the guide") {
  std::set<std::string> names;
  for (auto const& one : keel::all_troubles()) {
    CHECK(&keel::facts_about(one.cause) == &one);
    CHECK(names.insert(one.name).second);
    CHECK(std::string(one.fixes).size() > 10);
    CHECK(keel::trouble_table().find(one.name) != std::string::npos);
  }
}
