// What a message, a symptom or an id means: explain WORDS.. prints what fits best, with cause and fix. Needs no LibTorch.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <keel/diagnose/explain.hpp>
#include <string>
#include <vector>

int main(int count, char** arguments) {
  CLI::App app("Says what a message, a symptom or an id of keel means and what to do. Exit status: 0 found, 1 nothing fits.");
  std::vector<std::string> words;
  app.add_option("WORDS", words, "a message, a symptom as \"loss jumps after a resume\", or an id as A01")->required();
  CLI11_PARSE(app, count, arguments);
  std::string asked;
  for (std::string const& word : words) asked += word + " ";
  auto const found = keel::explain(asked);
  for (keel::explanation const& one : found) std::printf("%s\n", keel::to_text(one).c_str());
  if (!found.empty()) return 0;
  std::fprintf(stderr, "no entry of the guide has these words. Try one that a message has, or read include/keel/diagnose/README.md.\n");
  return 1;
}
