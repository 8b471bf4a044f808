// What is wrong with a run: examples/run triage RUN_DIRECTORY, at any time, also while it runs.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <keel/diagnose/triage.hpp>
#include <string>
#include <thread>

int main(int count, char** words) {
  CLI::App app(
      "Judges a run from its directory: the family of trouble, the likely causes with their evidence, and what to do. Exit status: 0 "
      "healthy, 1 in trouble, 2 the directory cannot be read, 3 not enough data, 4 it did not end.");
  std::string directory;
  double seconds = 0.0;
  app.add_option("RUN_DIRECTORY", directory, "a directory that holds metrics.jsonl or events.jsonl")->required();
  app.add_option("--every", seconds, "judge again and again, with so many seconds between, until the run is in trouble");
  CLI11_PARSE(app, count, words);
  try {
    keel::triage_result found = keel::triage(directory);
    while (seconds > 0.0 && found.verdict != keel::triage_verdict::in_trouble) {
      std::fputs(keel::to_text(found).c_str(), stdout);
      std::fflush(stdout);
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
      found = keel::triage(directory);
    }
    std::fputs(keel::to_text(found).c_str(), stdout);
    if (found.verdict == keel::triage_verdict::in_trouble) return 1;
    if (found.verdict == keel::triage_verdict::not_ended) return 4;
    return found.verdict == keel::triage_verdict::healthy ? 0 : 3;
  } catch (std::exception const& thrown) {
    std::fprintf(stderr, "%s\n", thrown.what());
    return 2;
  }
}
