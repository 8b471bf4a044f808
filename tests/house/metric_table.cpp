// Prints the metrics of a run as tab-separated fields: key in metrics.jsonl, name for sinks, unit, reduction over updates and over ranks.
#include <iostream>
#include <keel/metrics/run_metric.hpp>
#include <type_traits>

namespace {

char const* to_string(keel::over_updates how) {
  constexpr char const* names[] = {"mean", "sum", "min", "max", "last", "farthest from 0"};
  return names[static_cast<int>(how)];
}

template <class Reduction>
char const* over_ranks() {
  if constexpr (std::is_same_v<Reduction, keel::reduce::sum>) return "sum";
  if constexpr (std::is_same_v<Reduction, keel::reduce::min>) return "min";
  if constexpr (std::is_same_v<Reduction, keel::reduce::max>) return "max";
  return "mean";
}

template <class Metric>
void print_row(char const* key) {
  std::cout << key << '\t' << (Metric::name != nullptr ? Metric::name : "") << '\t' << Metric::unit::name << '\t'
            << to_string(Metric::over_updates) << '\t' << over_ranks<typename Metric::over_ranks>() << '\n';
}

}  // namespace

int main() {
  keel::measured_metrics<double>::for_each_metric([]<class Metric>(Metric) { print_row<Metric>(Metric::key); });
  []<class... Metrics>(keel::run_metric_list<Metrics...>) { (print_row<Metrics>(""), ...); }(keel::run_metrics{});
}
