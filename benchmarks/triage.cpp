// How often a triage is right: runs with one fault each, really trained, and healthy ones, judged from their run directories alone; beside
// it a baseline of the thresholds that practice names. An argument judges only what has it in its name, and says what was found; a second
// one is a folder that keeps the run directories, or -, and a third a number that is added to every seed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <keel/diagnose/curve_values.hpp>
#include <keel/diagnose/triage.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "diagnose/planted_other_models.hpp"

namespace {

using namespace keel_test;
using keel::trouble;

/// One look at each of the usual signals, in the usual order.
std::vector<trouble> by_thresholds(keel::run_history const& history) {
  using namespace keel::detail;
  auto const has = [&](char const* event, char const* words) {
    return std::any_of(history.events.begin(), history.events.end(), [&](keel::run_event const& one) {
      return one.name == event && one.details.dump().find(words) != std::string::npos;
    });
  };
  auto const norms = values_of(points_of(history, "gradient_norm"));
  bool const spikes = std::any_of(norms.begin(), norms.end(), [](double one) { return one > 100.0; });
  if (has("failed", "memory")) return {trouble::activations, trouble::optimizer_state};
  if (has("skipped", "non-finite") || has("failed", "E08"))
    return spikes ? std::vector{trouble::blow_up, trouble::loss_scale} : std::vector{trouble::bad_sample, trouble::layer_numerics};
  if (has("skipped", "overflow")) return {trouble::loss_scale, trouble::blow_up};
  if (has("memory_grows", "")) return {trouble::memory_leak, trouble::fragmentation};
  for (auto const& [name, one] : evaluations_of(history)) {
    auto const lowest =
        std::min_element(one.kept.begin(), one.kept.end(), [](auto const& a, auto const& b) { return a.value < b.value; });
    if (lowest != one.kept.end() && one.kept.back().value > 1.05 * lowest->value) return {trouble::overfitting, trouble::forgetting};
  }
  auto const padding = values_of(points_of(history, "padding"));
  if (!padding.empty() && median_of(padding) > 0.5) return {trouble::padding, trouble::waiting_for_data};
  auto const data = values_of(points_of(history, "time.data")), total = values_of(points_of(history, "time.total"));
  if (!total.empty() && median_of(data) > 0.3 * median_of(total)) return {trouble::waiting_for_data, trouble::host_waits};
  curve_shape const loss = shape_of(points_of(history, "loss"));
  if (loss.count > 0 && loss.last > 0.95 * loss.start)
    return spikes ? std::vector{trouble::rate_too_high, trouble::wrong_labels} : std::vector{trouble::rate_too_low, trouble::wrong_labels};
  if (spikes) return {trouble::rate_too_high, trouble::blow_up};
  return {};
}

struct score {
  int runs = 0;
  int families = 0;
  int causes = 0;
  int alarms = 0;
  int healthy = 0;

  void add(trouble truth, std::vector<trouble> const& found) {
    ++runs;
    if (found.empty()) return;
    families += keel::facts_about(found[0]).family == keel::facts_about(truth).family ? 1 : 0;
    causes += std::find(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(2, found.size())), truth) !=
                      found.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(2, found.size()))
                  ? 1
                  : 0;
  }
  double family() const { return static_cast<double>(families) / std::max(runs, 1); }
  double cause() const { return static_cast<double>(causes) / std::max(runs, 1); }
};

keel::run_history history_of(std::filesystem::path const& directory) {
  return std::filesystem::exists(directory / "metrics.jsonl") ? keel::read_run_history(directory) : keel::run_history{};
}

void print(char const* name, double ours, double peer, int of) {
  std::printf("{\"name\": \"triage/%s\", \"ours\": %.4f, \"peer\": %.4f, \"ratio\": null, \"unit\": \"%s\", \"detail\": \"of %d runs; peer: "
              "thresholds of single signals\"}\n",
              name, ours, peer, name[1] == 'a' && name[0] == 'f' && name[2] == 'l' ? "runs" : "share", of);
}

template <class Run>
std::vector<Run> both(std::vector<Run> first, std::vector<Run> const& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

int main(int count, char** arguments) {
  std::string const wanted = count > 1 ? arguments[1] : "";
  auto const keep = [&](std::filesystem::path const& directory, std::string const& name) {
    if (count > 2 && std::string(arguments[2]) != "-") std::filesystem::copy(directory, std::filesystem::path(arguments[2]) / name,
                                             std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  };
  std::uint64_t const shift = count > 3 ? std::stoull(arguments[3]) : 0;
  score ours, baseline;
  std::map<std::string, std::map<std::string, int>> confusion;
  for (planted::incident const& one : both(planted::incidents(), planted::unseen::incidents())) {
    std::string const cause = keel::facts_about(one.cause).name;
    std::string const name = cause + ": " + one.name + " (" + to_string(one.kind) + ", seed " + std::to_string(one.seed) + ")";
    if (name.find(wanted) == std::string::npos) continue;
    scratch_directory directory;
    planted::plan plan;
    plan.directory = directory.path();
    plan.kind = one.kind;
    plan.seed = one.seed + shift;
    planted::in_another_process([&] {
      at::set_num_threads(1);
      one.run(plan);
    });
    keep(directory.path(), name);
    keel::triage_result const found = keel::triage(directory.path());
    std::vector<trouble> causes;
    for (auto const& finding : found.findings) causes.push_back(finding.cause);
    ours.add(one.cause, causes);
    baseline.add(one.cause, by_thresholds(history_of(directory.path())));
    ++confusion[cause][causes.empty() ? keel::to_text(found).substr(0, 7) : keel::facts_about(causes.front()).name];
    bool const is_first = !causes.empty() && causes.front() == one.cause;
    if (!wanted.empty() || !is_first)
      std::fprintf(stderr, "%s\n%s", name.c_str(), keel::to_text(found).c_str());
  }
  for (planted::healthy_run const& one : both(planted::healthy_runs(), planted::unseen::healthy_runs())) {
    std::string const name = "healthy: " + one.name + " (" + to_string(one.kind) + ", seed " + std::to_string(one.seed) + ")";
    if (name.find(wanted) == std::string::npos) continue;
    scratch_directory directory;
    planted::plan plan;
    plan.directory = directory.path();
    plan.kind = one.kind;
    plan.seed = one.seed + shift;
    planted::in_another_process([&] {
      at::set_num_threads(1);
      one.run(plan);
    });
    keep(directory.path(), name);
    keel::triage_result const found = keel::triage(directory.path());
    bool const alarms = found.verdict == keel::triage_verdict::in_trouble;
    ours.alarms += alarms ? 1 : 0;
    ++ours.healthy;
    baseline.alarms += by_thresholds(history_of(directory.path())).empty() ? 0 : 1;
    ++confusion["healthy"][alarms ? keel::facts_about(found.findings.front().cause).name : keel::to_text(found).substr(0, 7)];
    if (!wanted.empty() || alarms) std::fprintf(stderr, "%s\n%s", name.c_str(), keel::to_text(found).c_str());
  }
  std::fprintf(stderr, "\n| put in | found first |\n|---|---|\n");
  for (auto const& [truth, all] : confusion) {
    std::fprintf(stderr, "| %s |", truth.c_str());
    for (auto const& [judged, times] : all) std::fprintf(stderr, " %s: %d", judged.c_str(), times);
    std::fprintf(stderr, " |\n");
  }
  print("family", ours.family(), baseline.family(), ours.runs);
  print("cause", ours.cause(), baseline.cause(), ours.runs);
  print("false_alarms", ours.alarms, baseline.alarms, ours.healthy);
}
