// Two ways of doing one thing, turn by turn in one process: medians, and the row that says so.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace keel_benchmark {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <class Run>
double milliseconds(Run&& run) {
  auto const start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

/// Medians in milliseconds of both, after `unmeasured` turns of each.
template <class Ours, class Theirs>
std::pair<double, double> compare(Ours&& ours, Theirs&& theirs, int rounds, int unmeasured) {
  std::vector<double> our_times;
  std::vector<double> their_times;
  for (int round = -unmeasured; round < rounds; ++round) {
    double const a = milliseconds(ours);
    double const b = milliseconds(theirs);
    if (round < 0) continue;
    our_times.push_back(a);
    their_times.push_back(b);
  }
  return {median(our_times), median(their_times)};
}

/// One JSON object on a line.
inline void print_row(std::string const& name, double ours, double peer, std::string const& detail, char const* unit = "ms") {
  std::printf("{\"name\": \"%s\", \"ours\": %.4f, \"peer\": %.4f, \"ratio\": %.3f, \"unit\": \"%s\", \"detail\": \"%s\"}\n",
              name.c_str(), ours, peer, peer / ours, unit, detail.c_str());
}

}  // namespace keel_benchmark
