// What messages, symptoms and ids are explained by.
#include <keel/diagnose/explain.hpp>
#include <keel/diagnose/guide.hpp>
#include <keel/diagnose/page_text.hpp>
#include <keel/policy/health.hpp>
#include <keel/rule/every_rule.hpp>
#include <set>

#include "../support.hpp"

namespace {

/// The first that is found says this.
bool finds(char const* asked, char const* words) {
  auto const found = keel::explain(asked);
  INFO(asked << " gives " << (found.empty() ? "nothing" : found.front().seen));
  bool const fits = !found.empty() && (found.front().seen + found.front().cause).find(words) != std::string::npos;
  CHECK(fits);
  return fits;
}

template <class... Rules>
std::vector<std::string> ids_of(keel::rule::list<Rules...>) {
  return {std::string(Rules::id)...};
}

}  // namespace

TEST_CASE("messages and symptoms of the tables that people know are explained") {
  finds("exitcode: -9", "host memory");
  finds("exitcode: -7 (DeepSpeed)", "shared memory");
  finds("CUDA out of memory", "activations");
  finds("RuntimeError: NCCL communicator was aborted", "another rank");
  finds("ValueError: Asking to pad but the tokenizer does not have a padding token", "tokenizer");
  finds("'DummyOptim' object has no attribute 'step'", "placeholder");
  finds("unable to load strategy X", "was not found");
  finds("generation_batch_size not divisible by num_generations", "groups of answers");
  finds("'weight' must be 2-D", "flat");
  finds("CheckpointError (tensor count mismatch)", "saved different tensors");
  finds("BFloat16 TypeError during weight sync", "NumPy");
  finds("Content end boundary is before start boundary", "chat template");
  finds("CAS service error during data processing", "download");
  finds("Training hangs (multi-GPU), async prefetch", "prefetching thread");
  finds("loss is nan", "learning rate too high");
  finds("the loss does not decrease", "well above");
  finds("loss spikes", "recovers");
  finds("overfitting", "evaluation loss rises");
  finds("wild oscillations", "bounces");
  finds("catastrophic forgetting", "older task");
  finds("memory grows: staircase", "leak");
  finds("OOM at validation", "keeps the autograd graph");
  finds("fragmentation", "fragmentation");
  finds("low MFU", "small or odd sizes");
  finds("waiting for data", "workers");
  finds("loss jumps after a resume", "moments");
  finds("nan_to_num", "the cause remains");
  finds("label leakage", "inputs contain the targets");
  finds("nvidia-smi shows more memory", "driver");
}

TEST_CASE("every id of a rule and of a running program is explained by its own words") {
  for (std::string const& id : ids_of(keel::rule::every_rule{})) {
    auto const found = keel::explain(id);
    INFO(id);
    REQUIRE(!found.empty());
    CHECK(found.back().seen.find("[" + id + "]") == 0);
    CHECK(!found.back().fix.empty());
  }
  for (int number = 1; number <= 19; ++number) {
    std::string const id = (number < 10 ? "E0" : "E") + std::to_string(number);
    INFO(id);
    CHECK(!keel::explain("[" + id + "]").empty());
    CHECK(keel::explain(id).front().seen.find(id) != std::string::npos);
  }
}

TEST_CASE("an id is a rule's or a running program's, never both") {
  std::set<std::string> of_rules;
  for (std::string const& id : ids_of(keel::rule::every_rule{})) CHECK(of_rules.insert(id).second);
  std::size_t of_programs = 0;
  for (keel::guide_entry const& entry : keel::guide()) {
    std::string const seen = entry.seen;
    if (seen.size() != 3 || seen[0] != 'E') continue;
    ++of_programs;
    INFO(seen);
    CHECK(of_rules.count(seen) == 0);
    CHECK(keel::explain(seen).front().seen == seen);
  }
  CHECK(of_programs == 25);
}

TEST_CASE("words that no entry has are explained by nothing, and nothing is by nothing") {
  CHECK(keel::explain("xyzzy").empty());
  CHECK(keel::explain("").empty());
  CHECK(keel::explain("nan", 0).empty());
  CHECK(keel::explain("the loss and the gradient", 100).size() > 1);
}

TEST_CASE("an entry of the guide has all of its fields, and none is there twice") {
  std::set<std::string> seen;
  for (keel::guide_entry const& entry : keel::guide()) {
    INFO(entry.seen);
    std::string const cause = keel::joined(entry.causes);
    std::string const fix = keel::joined(keel::fixes_of(entry.causes));
    for (std::string const& field : {std::string(entry.family), std::string(entry.seen), cause, fix, std::string(entry.keel)}) {
      CHECK(!field.empty());
      // A table has no room for it.
      CHECK(field.find('|') == std::string::npos);
    }
    CHECK(seen.insert(entry.seen).second);
  }
}

TEST_CASE("every cause of the table is found by its name, with the fix that triage names first") {
  for (keel::trouble_facts const& facts : keel::all_troubles) {
    INFO(facts.name);
    bool is_found = false;
    for (keel::explanation const& one : keel::explain(facts.name)) {
      is_found = is_found || (one.cause.find(facts.name) != std::string::npos && one.fix.find(facts.fixes[0]) != std::string::npos);
    }
    CHECK(is_found);
  }
}

TEST_CASE("an alarm of keel has the fixes of its causes: the first of the likeliest one first, that of every other one too") {
  using all = keel::health::watch<keel::health::sft, keel::health::slows_down, keel::health::memory_grows>;
  int alarms = 0;
  keel::health::for_each_alarm<all>([&](keel::health::watched_alarm const& one) {
    ++alarms;
    INFO(one.what->name);
    auto const& causes = one.what->causes;
    auto const& fixes = one.what->fixes;
    REQUIRE(causes[0].fixes[0] != nullptr);
    REQUIRE(fixes[0] != nullptr);
    CHECK(fixes[0] == std::string(causes[0].fixes[0]));
    for (keel::trouble_facts const& facts : keel::all_troubles) {
      for (int i = 0; i < keel::max_texts && causes[i] != nullptr; ++i) {
        if (causes[i].text != std::string(facts.name)) continue;
        CHECK(("; " + keel::joined(fixes) + "; ").find("; " + std::string(facts.fixes[0]) + "; ") != std::string::npos);
      }
    }
  });
  CHECK(alarms == 23);
}

namespace {

constexpr keel::likely_cause own_and_known[keel::max_texts] = {
    {"a cause of the program", "its fix"}, keel::trouble::no_clipping, "no fix is known", keel::trouble::rate_too_high};
constexpr keel::health::alarm derives{.name = "derives", .causes = {keel::trouble::no_clipping, "another"}};
constexpr keel::health::alarm has_own{.name = "has_own", .causes = {keel::trouble::no_clipping}, .fixes = {"first", "second"}};

}  // namespace

TEST_CASE("fixes take turns among the causes without repetitions, and an alarm's own come in their place") {
  CHECK(keel::joined(keel::fixes_of(own_and_known)) ==
        "its fix; keel::clip::global_norm<1.0>; a learning rate 3 to 10 times lower; a warm-up of 5 to 10 % of the run; "
        "run.lr_range_test; a falling schedule such as keel::schedule::cosine<>");
  CHECK(keel::joined(derives.fixes) == "keel::clip::global_norm<1.0>");
  CHECK(keel::joined(derives.causes) == "gradients are not clipped; another");
  CHECK(keel::joined(has_own.fixes) == "first; second");
}
