// Commands without LibTorch: the record of a run, the guide, recipes in JSON.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <keel/core/error.hpp>
#include <keel/diagnose/explain.hpp>
#include <keel/diagnose/plan.hpp>
#include <keel/diagnose/report.hpp>
#include <keel/diagnose/triage.hpp>
#include <keel/json/load_config.hpp>
#include <keel/tools/commands.hpp>
#include <thread>

namespace keel::tools {

namespace {

int judge(std::filesystem::path const& file) {
  try {
    // [load_config]
    keel::config const recipe = keel::load_config(file);  // throws recipe_error with all broken rules
    std::fputs(keel::describe(recipe).c_str(), stdout);
    // [load_config]
    return 0;
  } catch (recipe_error const& broken) {
    std::fprintf(stderr, "%s\n", broken.what());
    return 1;
  } catch (error const& wrong) {
    std::fprintf(stderr, "%s\n", wrong.what());
    return 2;
  }
}

}  // namespace

int plan(plan_inputs const& inputs, std::vector<std::int64_t> const& ranks) {
  std::fputs(describe_plan(inputs, ranks).c_str(), stdout);
  for (std::int64_t const count : ranks) {
    for (int stage = 0; stage <= 3; ++stage) {
      if (plan_run(inputs, count, stage).fits) return 0;
    }
  }
  return 1;
}

int report(std::vector<std::filesystem::path> const& run_directories, std::filesystem::path const& output) {
  std::vector<run_history> runs;
  for (std::filesystem::path const& directory : run_directories) {
    runs.push_back(read_run_history(directory));
    std::printf("%s: %s\n", runs.back().name.c_str(), verdict_of(runs.back()).c_str());
  }
  std::ofstream page(output, std::ios::binary);
  page << report_page(runs) << std::flush;
  if (!page) throw file_error("E02", "cannot write " + output.string() + ". Name another file with --output.");
  std::printf("wrote %s\n", std::filesystem::absolute(output).c_str());
  return 0;
}

int triage(std::filesystem::path const& run_directory, double seconds) {
  triage_result found = keel::triage(run_directory);
  while (seconds > 0.0 && found.verdict != triage_verdict::in_trouble) {
    std::fputs(to_text(found).c_str(), stdout);
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    found = keel::triage(run_directory);
  }
  std::fputs(to_text(found).c_str(), stdout);
  if (found.verdict == triage_verdict::in_trouble) return 1;
  if (found.verdict == triage_verdict::not_ended) return 4;
  return found.verdict == triage_verdict::healthy ? 0 : 3;
}

int explain(std::string const& words) {
  auto const found = keel::explain(words);
  for (explanation const& one : found) std::printf("%s\n", to_text(one).c_str());
  if (!found.empty()) return 0;
  std::fprintf(stderr,
               "no entry of the guide has these words. Try one that a message has, or read include/keel/diagnose/README.md.\n");
  return 1;
}

int check(std::vector<std::filesystem::path> const& recipes) {
  int worst = 0;
  for (std::filesystem::path const& file : recipes) worst = std::max(worst, judge(file));
  return worst;
}

}  // namespace keel::tools
