// A page about one run or several over each other, for a browser: examples/run report RUN_DIRECTORY.. [--output FILE]
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <keel/core/error.hpp>
#include <keel/diagnose/report.hpp>
#include <string>
#include <vector>

int main(int count, char** words) {
  CLI::App arguments("Writes a page about runs, which any browser opens, without a network.");
  std::vector<std::string> directories;
  std::string output = "report.html";
  arguments.add_option("run_directories", directories, "directories that hold metrics.jsonl")->required();
  arguments.add_option("--output,-o", output, "the page")->capture_default_str();
  CLI11_PARSE(arguments, count, words);
  try {
    std::vector<keel::run_history> runs;
    for (std::string const& directory : directories) {
      runs.push_back(keel::read_run_history(directory));
      std::printf("%s: %s\n", runs.back().name.c_str(), keel::verdict_of(runs.back()).c_str());
    }
    std::ofstream page(output, std::ios::binary);
    page << keel::report_page(runs) << std::flush;
    if (!page) throw keel::file_error("E02", "cannot write " + output + ". Name another file with --output.");
    std::printf("wrote %s\n", std::filesystem::absolute(output).c_str());
    return 0;
  } catch (std::exception const& thrown) {
    std::fprintf(stderr, "%s\n", thrown.what());
    return 1;
  }
}
