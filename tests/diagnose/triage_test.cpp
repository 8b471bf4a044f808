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
  std::size_t distinguished = 0;
  for (auto const& one : keel::all_troubles) distinguished += *one.fields != '\0' ? 1 : 0;
  CHECK(distinguished == 37);
  CHECK(seen.size() == distinguished - 1);
}

TEST_CASE("no run that is as it should be is in trouble") {
  std::set<std::string> seen;
  for (planted::healthy_run const& one : planted::healthy_runs()) {
    if (!seen.insert(one.name).second) continue;
    keel::triage_result const found = judged(one);
    INFO(one.name << ": " << keel::to_text(found));
    bool const is_slow = !found.findings.empty() && keel::facts_about(found.findings.front().cause).family == keel::trouble_family::slow;
    if (is_sanitized && is_slow) {
      WARN("SKIPPED: under a sanitizer a run is slow");
      continue;
    }
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

TEST_CASE("a run whose process is gone without an end is not healthy, and one that still runs is") {
  scratch_directory directory;
  std::string lines;
  for (int i = 1; i <= 200; ++i) {
    lines += nlohmann::json({{"update", i}, {"attempt", i}, {"epoch", 0}, {"loss", 2.0 / (1 + 0.01 * i)}, {"gradient_norm", 1.0}, {"lr", 0.1}}).dump() + "\n";
  }
  write_file(directory / "metrics.jsonl", lines);
  std::string const begins = "{\"event\":\"started\",\"update\":0,\"time\":1763900000.5}\n";
  write_file(directory / "events.jsonl", begins);
  auto const verdict = [&] { return keel::triage(directory.path()).verdict; };
  CHECK(verdict() == triage_verdict::not_ended);
  CHECK(keel::to_text(keel::triage(directory.path())).find("no end: no finding in 200 updates") == 0);
  // A number that no process has.
  write_file(directory / "lock", "99999999\n");
  CHECK(verdict() == triage_verdict::not_ended);
  {
    auto const held = keel::file_system().try_lock(directory / "lock");
    CHECK(verdict() == triage_verdict::healthy);
  }
  CHECK(verdict() == triage_verdict::not_ended);
  write_file(directory / "events.jsonl", begins + "{\"event\":\"finished\",\"update\":200,\"time\":1763900100.5}\n");
  CHECK(verdict() == triage_verdict::healthy);
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
  std::string const page = keel::guide_page();
  for (auto const& one : keel::all_troubles) {
    CHECK(&keel::facts_about(one.cause) == &one);
    CHECK(names.insert(one.name).second);
    REQUIRE(one.fixes[0] != nullptr);
    CHECK(std::string(one.fixes[0]).size() > 10);
    CHECK(page.find(std::string(" | ") + one.name + " | " + one.fields + " | " + one.fixes[0]) != std::string::npos);
  }
}

namespace {

/// The four ranks of a story, `change(ranks)` on top of so many sound updates; what a triage says of it.
keel::triage_result story(std::function<void(std::vector<std::vector<nlohmann::json>>&)> const& change) {
  scratch_directory directory;
  auto ranks = planted::sound_ranks(14, 6);
  change(ranks);
  planted::write_ranks(directory.path(), ranks);
  return keel::triage(directory.path());
}

void is_diagnosed(keel::triage_result const& found, trouble cause, char const* words) {
  INFO(keel::to_text(found));
  REQUIRE(found.verdict == triage_verdict::in_trouble);
  CHECK(found.findings[0].cause == cause);
  CHECK(keel::to_text(found).find(words) != std::string::npos);
}

void add_update(std::vector<nlohmann::json>& rank, std::int64_t update, nlohmann::json fields) {
  fields.update({{"event", "update"}, {"update", update}, {"time", rank.back()["time"]}});
  rank.push_back(std::move(fields));
}

}  // namespace

TEST_CASE("failure stories 5 to 8: ranks that clip apart, count twice, report another norm, or drift are named") {
  is_diagnosed(story([](auto& ranks) {
            for (std::size_t i = 0; i < 4; ++i) add_update(ranks[i], 3, {{"gradient_norm", 2.0}, {"coefficient", 0.5 + 0.1 * i}});
          }),
          trouble::ranks_drift, "each rank used the norm of its local shard");
  is_diagnosed(story([](auto& ranks) {
            // A quarter of each square is replicated, and counted on each of the four.
            for (auto& rank : ranks) add_update(rank, 3, {{"gradient_norm", std::sqrt(4 * (0.75 + 4 * 0.25))}, {"shard_norm", 1.0}});
          }),
          trouble::wrong_norm, "times the norm over all shards");
  is_diagnosed(story([](auto& ranks) {
            for (auto& rank : ranks) add_update(rank, 3, {{"gradient_norm", 4.0}, {"shard_norm", 1.0}});
          }),
          trouble::wrong_norm, "each shard was counted as the full gradient");
  is_diagnosed(story([](auto& ranks) {
            for (std::size_t i = 0; i < 4; ++i) {
              add_update(ranks[i], 3, {{"state", "aa"}});
              add_update(ranks[i], 4, {{"state", i == 2 ? "ab" : "aa"}});
            }
          }),
          trouble::ranks_drift, "at update 4 rank 2 differs from rank 0 in replicated state");
}

TEST_CASE("failure stories 12 to 18: ranks that decide alone, fall silent or call other collectives are named, and sound ones are not") {
  auto const others_wait = [](auto& ranks, std::size_t except, double seconds) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (i != except) planted::add_waiting(ranks[i], 14, "gradients", 4096, seconds);
    }
  };
  auto const lives_on = [](std::vector<nlohmann::json>& rank, double seconds) {
    double const now = rank.back()["time"].get<double>();
    for (double t = 10.0; t <= seconds; t += 10.0) rank.push_back({{"event", "alive"}, {"time", now + t}});
  };
  // 12: one rank skips a bad batch and goes on alone.
  is_diagnosed(story([&](auto& ranks) {
            others_wait(ranks, 1, 200.0);
            lives_on(ranks[1], 200.0);
          }),
          trouble::collective_mismatch, "rank 1 is alive but has not entered it");
  // 13: what rank 0 sees as finite is NaN on another, which applies it all the same.
  is_diagnosed(story([](auto& ranks) {
            for (std::size_t i = 0; i < 4; ++i)
              add_update(ranks[i], 5, {{"gradient_norm", i == 3 ? nlohmann::json("nan") : nlohmann::json(1.5)}});
          }),
          trouble::ranks_drift, "not agreed");
  // 14: memory runs out on one.
  is_diagnosed(story([&](auto& ranks) {
            others_wait(ranks, 2, 90.0);
            ranks[2].push_back({{"event", "left"}, {"why", "[E09] memory ran out in update 15"}, {"time", ranks[2].back()["time"]}});
          }),
          trouble::dead_rank, "rank 2 ended: [E09] memory ran out");
  // 15: stopped, and silent.
  is_diagnosed(story([&](auto& ranks) { others_wait(ranks, 0, 120.0); }), trouble::dead_rank, "rank 0 has not reported");
  // 16: other sizes.
  is_diagnosed(story([&](auto& ranks) {
            others_wait(ranks, 3, 60.0);
            planted::add_waiting(ranks[3], 14, "gradients", 4095, 60.0);
          }),
          trouble::collective_mismatch, "4095");
  // 17: no false alarm.
  CHECK(story([](auto& ranks) {
          for (auto& rank : ranks) {
            for (std::int64_t update = 1; update < 14; ++update)
              add_update(rank, update, {{"gradient_norm", 2.0}, {"coefficient", 0.5}, {"shard_norm", 1.0}, {"state", "aa"}});
          }
        }).verdict != triage_verdict::in_trouble);
  // 18: stuck in a lock of the data loader, while its threads live.
  is_diagnosed(story([&](auto& ranks) {
            others_wait(ranks, 2, 300.0);
            lives_on(ranks[2], 300.0);
          }),
          trouble::collective_mismatch, "rank 2 is alive");
}
