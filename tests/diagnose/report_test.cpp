// The page about a run: what it shows is what the record says, whatever the record holds.
#include "../support.hpp"

#include <cmath>
#include <keel/diagnose/heat_strip.hpp>
#include <keel/diagnose/page_text.hpp>
#include <keel/diagnose/plot.hpp>
#include <keel/diagnose/report.hpp>
#include <keel/diagnose/trace_figure.hpp>
#include <keel/diagnose/triage.hpp>
#include <random>

using namespace keel_test;

namespace {

struct written_run {
  scratch_directory directory;
  std::string metrics;
  std::string events;

  void line(std::int64_t update, std::string const& loss, std::string const& more = "") {
    metrics += "{\"update\":" + std::to_string(update) + ",\"attempt\":" + std::to_string(update) + ",\"epoch\":0,\"loss\":" + loss +
               ",\"gradient_norm\":1.5,\"lr\":0.1,\"skipped\":0" + more + ",\"ms\":10.5}\n";
  }
  void event(std::string const& name, std::int64_t update, std::string const& more = "") {
    events += "{\"event\":\"" + name + "\",\"update\":" + std::to_string(update) + ",\"time\":1763900000.5" + more + "}\n";
  }
  keel::run_history history(std::string const& name = "run") const {
    std::filesystem::create_directories(directory / name);
    write_file(directory / name / "metrics.jsonl", metrics);
    if (!events.empty()) write_file(directory / name / "events.jsonl", events);
    return keel::read_run_history(directory / name);
  }
};

/// Elements opened and closed in order; the page loads nothing and runs nothing.
void require_sound_page(std::string const& page) {
  std::vector<std::string> open;
  for (std::size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at + 1)) {
    std::size_t const end = page.find('>', at);
    REQUIRE(end != std::string::npos);
    std::string tag = page.substr(at + 1, end - at - 1);
    if (tag.starts_with("!doctype")) continue;
    bool const closes = tag.front() == '/';
    bool const is_alone = tag.back() == '/';
    std::string const name = tag.substr(closes ? 1 : 0, tag.find_first_of(" /", closes ? 1 : 0) - (closes ? 1 : 0));
    if (name == "meta" || is_alone) continue;
    if (closes) {
      REQUIRE(!open.empty());
      REQUIRE(open.back() == name);
      open.pop_back();
    } else {
      open.push_back(name);
    }
    // Attributes hold no quote that ends them early.
    REQUIRE(std::count(tag.begin(), tag.end(), '"') % 2 == 0);
  }
  REQUIRE(open.empty());
  for (char const* const forbidden : {"<script", " src=", " href=", "url(", "@import", "<img", "<link", " onload", " onerror"}) {
    INFO(forbidden);
    REQUIRE(page.find(forbidden) == std::string::npos);
  }
}

}  // namespace

TEST_CASE("a history is the run as it is, with what was abandoned apart") {
  written_run run;
  for (int i = 1; i <= 6; ++i) run.line(i, std::to_string(i) + ".0");
  run.metrics += "{\"rolled_back\":1,\"update\":4,\"abandoned\":2,\"attempt\":6}\n";
  for (int i = 5; i <= 7; ++i) run.line(i, std::to_string(10 * i) + ".0");
  run.metrics += "{\"restarted\":3,\"update\":3,\"abandoned\":4,\"attempt\":9}\n";
  run.line(4, "400.0");
  run.line(4, "\"nan\"", ",\"skipped_because\":\"NaN\"");
  run.metrics += "{\"update\":5,\"lo";
  auto const history = run.history();
  auto const& loss = history.curves.at("loss");
  REQUIRE(loss.kept.size() == 4);
  CHECK(loss.kept[3].update == 4);
  CHECK(loss.kept[3].value == 400.0);
  REQUIRE(loss.abandoned.size() == 2);
  CHECK(loss.abandoned[0].size() == 2);
  CHECK(loss.abandoned[1].size() == 4);
  CHECK(history.unreadable == 1);
  CHECK(history.updates == 4);
}

TEST_CASE("numbers that JSON lacks are read back") {
  written_run run;
  run.line(1, "\"nan\"", ",\"clipped\":true,\"own\":{\"mine\":\"-inf\"},\"memory\":{\"forward\":5}");
  auto const history = run.history();
  CHECK(std::isnan(history.curves.at("loss").kept[0].value));
  CHECK(history.curves.at("own.mine").kept[0].value == -INFINITY);
  CHECK(history.curves.at("memory.forward").kept[0].value == 5.0);
  CHECK(history.curves.at("clipped").kept[0].value == 1.0);
}

TEST_CASE("codes for a terminal in the texts of a record are shown as question marks, and other letters as they are") {
  written_run run;
  run.line(1, "1.0");
  run.event("failed", 1, R"(,"message":"a \u001b[31mred\u0007 \u009b31m \u00e9\u4e2d text")");
  std::string const words = keel::verdict_of(run.history());
  CHECK(words == "Failed at update 1: a ?[31mred? ?31m \xc3\xa9\xe4\xb8\xad text");
}

TEST_CASE("an alarm that comes again is one line, and its causes stand where it came first") {
  written_run run;
  run.line(1, "1.0");
  for (int update = 1; update <= 3; ++update)
    run.event("alarm", update, R"(,"alarm":"loss_is_constant","severity":"high","message":"it is","causes":["the only cause"],"fixes":["a fix"])");
  std::string const page = keel::report_page({run.history()});
  require_sound_page(page);
  std::size_t count = 0;
  for (std::size_t at = page.find("the only cause"); at != std::string::npos; at = page.find("the only cause", at + 1)) ++count;
  CHECK(count == 1);
  CHECK(page.find("update 3: loss_is_constant") != std::string::npos);
}

TEST_CASE("the head of a report has the reason for the end and the best evaluation of what the recipe judges") {
  written_run run;
  for (int update = 1; update <= 3; ++update) run.line(update, "1.0");
  run.event("evaluated", 1, R"(,"name":"validation","values":{"accuracy":0.5,"loss":2.5},"loss":2.5)");
  run.event("evaluated", 2, R"(,"name":"validation","values":{"accuracy":0.7,"loss":"nan"},"loss":"nan")");
  run.event("evaluated", 3, R"(,"name":"validation","values":{"accuracy":0.6,"loss":2.25},"loss":2.25)");
  run.event("finished", 3, R"(,"words":"finished","why":"the run reached its length")");
  auto history = run.history();
  CHECK(keel::verdict_of(history) ==
        "Finished after update 3: the run reached its length. Best evaluation: validation loss 2.25 at update 3.");
  history.recipe = nlohmann::json::parse(R"({"evaluation":{"every":{"interval":1,"monitor":"accuracy","larger_is_better":true}}})");
  CHECK(keel::verdict_of(history).find("Best evaluation: validation accuracy 0.7 at update 2.") != std::string::npos);
  // Of two with that value the run judges the one that comes first.
  written_run two;
  two.line(1, "1.0");
  two.event("evaluated", 1, R"(,"name":"validation","values":{"loss":2.5},"loss":2.5)");
  two.event("evaluated", 1, R"(,"name":"held out","values":{"loss":1.5},"loss":1.5)");
  two.event("finished", 1);
  CHECK(keel::verdict_of(two.history()) == "Finished after update 1. Best evaluation: validation loss 2.5 at update 1.");
}

TEST_CASE("the trend of a long record lies over its lines, and a short one has none") {
  written_run run;
  for (int update = 1; update <= 300; ++update) run.line(update, std::to_string(2.0 + (update % 2 == 0 ? 1.0 : -1.0)));
  std::string const page = keel::report_page({run.history()});
  require_sound_page(page);
  CHECK(page.find("loss and its trend") != std::string::npos);
  // The trend of 1, 3, 1, 3 .. stays near 2.
  auto const trend = page.find("class=\"curve s0\"");
  CHECK((page.find("class=\"curve raw s0\"") < trend && trend != std::string::npos));
  written_run brief;
  for (int update = 1; update <= 30; ++update) brief.line(update, "1.0");
  CHECK(keel::report_page({brief.history()}).find("trend") == std::string::npos);
}

TEST_CASE("a verdict says how the run stands") {
  written_run run;
  run.line(1, "1.0");
  run.event("started", 0);
  CHECK(keel::verdict_of(run.history()) == "This run has not ended: it is still running, or was killed after update 1.");
  run.event("finished", 1);
  CHECK(keel::verdict_of(run.history()) == "Finished after update 1.");
  run.event("resumed", 1);
  CHECK(keel::verdict_of(run.history()).starts_with("This run has not ended"));
  run.event("failed", 1, ",\"message\":\"the disk is full\"");
  CHECK(keel::verdict_of(run.history()) == "Failed at update 1: the disk is full");
  run.event("restarted", 1);
  run.event("rolled_back", 1, ",\"to\":0");
  run.event("gave_up", 1, ",\"words\":\"gave up: no rung left\"");
  CHECK(keel::verdict_of(run.history()) == "Gave up at update 1: gave up: no rung left. 1 rollback.");
}

TEST_CASE("a directory without a record is an error that says what to name") {
  scratch_directory const directory;
  CHECK_THROWS_WITH(keel::read_run_history(directory), Catch::Contains("has no metrics.jsonl"));
}

TEST_CASE("a page shows curves, abandoned futures, marks, events, recipe and record, and nothing that a browser would load") {
  written_run run;
  for (int i = 1; i <= 6; ++i) run.line(i, std::to_string(i) + ".0", ",\"own\":{\"accuracy\":0.5},\"memory\":{\"held\":1,\"forward\":2}");
  run.metrics += "{\"rolled_back\":1,\"update\":4,\"abandoned\":2,\"attempt\":6}\n";
  run.line(5, "\"inf\"");
  run.event("evaluated", 4, ",\"values\":{\"loss\":0.75,\"accuracy\":0.5}");
  run.event("rolled_back", 6, ",\"to\":4,\"why\":\"ten <spikes> & \\\"more\\\"\"");
  auto history = run.history("a <b>\"name\"'&");
  history.recipe = {{"clip", {{"global_norm", 1.0}}}};
  std::string const page = keel::report_page({history});
  require_sound_page(page);
  for (char const* const part : {"curve abandoned", "class=\"bad\"", "class=\"mark back\"", "evaluation: accuracy", "memory of ", "global_norm",
                                 "ten &lt;spikes&gt; &amp; &quot;more&quot;", "class=\"happened back\"", "prefers-color-scheme:dark", "@media print", "width=device-width"}) {
    INFO(part);
    CHECK(page.find(part) != std::string::npos);
  }
  CHECK(page.find("<spikes>") == std::string::npos);
  CHECK(page.find("<b>\"name\"") == std::string::npos);
}

TEST_CASE("numbers are short enough for an axis") {
  std::vector<std::pair<double, std::string>> const all{{0, "0"}, {1500, "1500"}, {15000, "15k"}, {2.5e6, "2.5M"}, {3e9, "3G"}, {-2e16, "-2e+16"},
                                                       {0.05, "0.05"}, {0.00104, "1.04e-3"}, {-1e-5, "-1e-5"}, {1e300, "1e+300"}};
  for (auto const& [value, words] : all) CHECK(keel::short_number(value) == words);
  for (double const tiny : {5e-324, -2.2e-308, 1e-310}) CHECK(keel::short_number(tiny).size() < 16);
}

TEST_CASE("several runs lie over each other, each with a colour and a verdict") {
  written_run run;
  for (int i = 1; i <= 3; ++i) run.line(i, "1.0");
  std::vector<keel::run_history> runs;
  for (int i = 0; i < 10; ++i) runs.push_back(run.history("run-" + std::to_string(i)));
  std::string const page = keel::report_page(runs);
  require_sound_page(page);
  for (int i = 0; i < 10; ++i) CHECK(page.find("<b>run-" + std::to_string(i) + "</b>") != std::string::npos);
}

TEST_CASE("layers stand in the order of their numbers, and those of several runs under one scale") {
  written_run run;
  run.line(40, "1.0");
  std::string layers;
  for (int update = 10; update <= 40; update += 10) {
    layers += "{\"update\":" + std::to_string(update) + ",\"layers\":{";
    for (int i = 0; i < 12; ++i) layers += (i > 0 ? "," : "") + ("\"blocks." + std::to_string(i) + "\":{\"grad_norm\":" + std::to_string(i + 1) + ".5}");
    layers += "}}\n";
  }
  std::vector<keel::run_history> runs;
  for (int i = 0; i < 2; ++i) {
    std::string const name = "run-" + std::to_string(i);
    std::filesystem::create_directories(run.directory / name);
    write_file(run.directory / name / "layers.jsonl", layers);
    runs.push_back(run.history(name));
  }
  runs[1].layers["grad_norm/blocks.0"].kept[0].value = 1e4;
  std::string const page = keel::report_page(runs);
  require_sound_page(page);
  CHECK(page.find(">blocks.2<") < page.find(">blocks.10<"));
  // The scale is that of both runs.
  std::string const scale = "pale 1.5 to full 10k";
  CHECK(page.find(scale) != std::string::npos);
  CHECK(page.find(scale) != page.rfind(scale));
  CHECK(page.find("gradient norm of each layer, run-1") != std::string::npos);
  for (auto const& [one, other] : std::vector<std::pair<std::string, std::string>>{{"blocks.2", "blocks.10"}, {"a", "b"}, {"a1", "a01b"}, {"", "0"}, {"x9", "x10"}, {"x1.9", "x1.10"}}) {
    CAPTURE(one, other);
    CHECK(keel::natural_less(one, other));
    CHECK(!keel::natural_less(other, one));
  }
}

TEST_CASE("a profile of the run directory is a figure of the page, and a trace of anything else makes none") {
  written_run run;
  run.line(1, "1.0");
  auto const trace = [&](std::string const& name, std::string const& content) {
    std::filesystem::create_directories(run.directory / "run/profiles" / name);
    write_file(run.directory / "run/profiles" / name / "trace.json", content);
    write_file(run.directory / "run/profiles" / name / "summary.md", "# Updates <1> to 2");
  };
  trace("update-000000001", "{\"traceEvents\":[");
  trace("update-000000002", R"({"traceEvents":[{"ph":"M","tid":7,"name":"thread_name","args":{"name":"training <thread>"}},
    {"ph":"X","tid":7,"name":"aten::linear","cat":"matrix products","ts":0,"dur":5000},{"ph":"X","tid":7,"name":"aten::mm","cat":"matrix products","ts":1000,"dur":2000},
    {"ph":"X","tid":9,"name":"forward","cat":"phase","ts":0,"dur":6000},{"ph":"X","tid":7,"name":7,"ts":"x"},{"ph":"X","tid":"y"},3,{}]})");
  std::string const page = keel::report_page({run.history()});
  require_sound_page(page);
  for (char const* const part : {"cannot be read", "training &lt;thread&gt;", "aten::mm, 2.000 ms", "forward, 6.000 ms", "# Updates &lt;1&gt; to 2", ">6.0 ms<"}) {
    CAPTURE(part);
    CHECK(page.find(part) != std::string::npos);
  }
  for (char const* const content : {"[]", "7", "{}", "{\"traceEvents\":7}", "{\"traceEvents\":[{\"ph\":\"X\",\"tid\":1,\"ts\":1e308,\"dur\":1e308}]}",
                                    "{\"traceEvents\":[{\"ph\":\"X\",\"tid\":1,\"ts\":5,\"dur\":-1}]}", "null"})
    CHECK(keel::trace_figure("any", nlohmann::json::parse(content)).empty());
}

TEST_CASE("no spike is lost where thousands of points share a column, and the page stays small") {
  keel::run_curve curve;
  for (std::int64_t i = 0; i < 300000; ++i) curve.kept.push_back({i, i == 123457 ? 1e6 : i == 200001 ? std::nan("") : 1.0 + 1e-9 * static_cast<double>(i)});
  std::string const drawn = keel::plot("loss", "", {{"run", "s0", &curve}});
  CHECK(drawn.size() < 100000);
  // Where the highest value stands on an axis of six powers of ten with its margins.
  CHECK(drawn.find(" 19.9") != std::string::npos);
  CHECK(drawn.find("200001: NaN") != std::string::npos);
}

TEST_CASE("a spike beside a NaN is drawn, and so is a point between two of them") {
  keel::run_curve curve;
  for (std::int64_t i = 0; i < 3000; ++i) curve.kept.push_back({i, i == 1504 ? 90.0 : i % 2 == 0 ? std::nan("") : 1.0 + 1e-3 * static_cast<double>(i % 7)});
  std::string const drawn = keel::plot("loss", "", {{"run", "s0", &curve}});
  // Where the highest value stands on a linear axis with its margins.
  CHECK(drawn.find(" 19.9") != std::string::npos);
  keel::run_curve alone;
  alone.kept = {{1, std::nan("")}, {2, 1.0}, {3, std::nan("")}, {4, 2.0}};
  std::string const points = keel::plot("loss", "", {{"run", "s0", &alone}});
  std::size_t count = 0;
  for (std::size_t at = points.find("h0.1"); at != std::string::npos; at = points.find("h0.1", at + 1)) ++count;
  CHECK(count == 2);
}

TEST_CASE("of thousands of skips the page keeps the newest, and the rollback and the end beside them") {
  written_run run;
  run.line(1, "1.0");
  run.event("rolled_back", 1, ",\"to\":0,\"why\":\"the first of all\"");
  for (int i = 0; i < 3000; ++i) run.event("skipped", i, ",\"why\":\"NaN\"");
  run.event("failed", 5, ",\"message\":\"the end\"");
  std::string const page = keel::report_page({run.history()});
  CHECK(page.size() < 200000);
  for (char const* const part : {"the first of all", "the end", "<td class=\"number\">2999</td>", "Only the newest 200 events of each kind"}) CHECK(page.find(part) != std::string::npos);
}

TEST_CASE("a record with other content than a run writes gives a page all the same") {
  auto const seed = GENERATE(range(0, 40));
  std::mt19937 engine(static_cast<unsigned>(seed));
  auto const pick = [&](auto const& from) { return from[engine() % std::size(from)]; };
  std::vector<std::string> const values{"1", "-0.0", "1e308", "-1e308", "5e-324", "\"nan\"", "\"inf\"", "null", "true", "[1,2]", "{}", "{\"a\":{\"b\":1}}",
                                        "\"</svg><script>alert(1)</script>\"", "18446744073709551615", "\"\\u0000\\u001b\"", "{\"x\":1e300}", "-9223372036854775808", "9007199254740993", "7", "12"};
  std::vector<std::string> const keys{"update", "loss", "abandoned", "skipped", "gradient_norm", "memory", "own", "lr", "ms", "event", "time", "values", "name", "why", "<k>", "to", "attempt", "kept_attempt", "updates", "applied", "skipped_because"};
  std::vector<std::string> const names{"\"evaluated\"", "\"rolled_back\"", "\"finished\"", "\"failed\"", "\"<x>\"", "7"};
  written_run run;
  for (int i = 0; i < 60; ++i) {
    std::string line = "{\"loss\":" + std::string(pick(values));
    std::set<std::string> used{"loss"};
    for (int field = 0; field < 5; ++field) {
      std::string const key = pick(keys);
      // Marks of a rollback are few, or nothing is left to draw.
      if ((key == "abandoned" && engine() % 8 != 0) || !used.insert(key).second) continue;
      line += ",\"" + key + "\":" + std::string(pick(values));
    }
    if (used.insert("update").second) line += ",\"update\":" + std::to_string(engine() % 30);
    line += "}";
    if (engine() % 10 == 0) line.resize(engine() % line.size());
    run.metrics += line + "\n";
    run.events += "{\"event\":" + std::string(pick(names)) + ",\"update\":" + std::string(pick(values)) + ",\"time\":" + std::string(pick(values)) + ",\"values\":" +
                  std::string(pick(values)) + ",\"to\":" + std::string(pick(values)) + "}\n";
  }
  require_sound_page(keel::report_page({run.history()}));
}

TEST_CASE("what a record says moves no cursor of the terminal that shows it") {
  written_run run;
  run.line(1, "2.5");
  run.event("failed", 1, ",\"message\":\"\\u001b[2Jgone\\u0007\"");
  auto const history = run.history();
  CHECK(keel::verdict_of(history).find("Failed at update 1: ?[2Jgone?") == 0);
  CHECK(keel::to_text(keel::triage(history)).find('\x1b') == std::string::npos);
}
