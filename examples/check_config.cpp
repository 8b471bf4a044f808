// Judges recipes in files: check_config FILE.. prints each recipe and every rule that it breaks. Needs no LibTorch.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <keel/json/load_config.hpp>
#include <string>
#include <vector>

namespace {

/// 0: a good recipe; 1: one that breaks rules; 2: no recipe.
int judge(std::filesystem::path const& file) {
  try {
    // [load_config]
    keel::config const recipe = keel::load_config(file);   // throws recipe_error with all broken rules
    std::fputs(keel::describe(recipe).c_str(), stdout);
    // [load_config]
    return 0;
  } catch (keel::recipe_error const& broken) {
    std::fprintf(stderr, "%s\n", broken.what());
    return 1;
  } catch (keel::error const& wrong) {
    std::fprintf(stderr, "%s\n", wrong.what());
    return 2;
  }
}

}  // namespace

int main(int count, char** words) {
  CLI::App app("Judges recipes in JSON files by keel's rules. Exit status: 0 good, 1 a rule is broken, 2 no recipe.");
  std::vector<std::string> files;
  app.add_option("FILE", files, "recipes to judge")->required();
  CLI11_PARSE(app, count, words);
  int worst = 0;
  for (std::string const& file : files) worst = std::max(worst, judge(file));
  return worst;
}
