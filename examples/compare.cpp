// Two runs beside each other: examples/run compare RUN_DIRECTORY RUN_DIRECTORY
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <keel/diagnose/compare_runs.hpp>
#include <string>

int main(int count, char** words) {
  CLI::App app(
      "Says where two runs part: settings, the first update whose record differs, and the distance of their weights. Exit status: 0 the "
      "same, 1 they part, 2 a directory cannot be read.");
  std::string a;
  std::string b;
  app.add_option("RUN_A", a, "a directory that holds metrics.jsonl, as of a run that is fine")->required();
  app.add_option("RUN_B", b, "another one")->required();
  CLI11_PARSE(app, count, words);
  try {
    keel::run_comparison const found = keel::compare_runs(a, b);
    std::fputs(keel::to_text(found).c_str(), stdout);
    return found.records.empty() && found.common_updates > 0 ? 0 : 1;
  } catch (std::exception const& thrown) {
    std::fprintf(stderr, "%s\n", thrown.what());
    return 2;
  }
}
