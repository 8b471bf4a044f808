// Compile-time checks of a recipe with open numbers: a rule counts as broken for all numbers if each of many probe numbers breaks it. If
// some probe does not, the constructor decides, which knows the actual numbers.
#pragma once

#include <concepts>
#include <keel/config/open_numbers.hpp>
#include <limits>

namespace keel::detail {

inline constexpr long long whole_probes[] = {2,   1, 4,  8,   3,   16,     100,       1000, 10, 50,  64,   0,
                                             500, 6, 32, 128, 600, 10'000, 1'000'000, 60,   5,  256, 3600, 2000};
inline constexpr double real_probes[] = {0.5,  1.0,     0.1, 0.9,  2.0, 0.999, 0.01, 10.0, 1.5,  100.0, 1e-4, 1000.0,
                                         0.99, 65536.0, 0.0, 1e-6, 4.0, 0.04,  1e6,  0.25, 16.0, 0.001, 1e-5, 1024.0};
inline constexpr int probe_values = 24;
/// Round 1 uses the same number everywhere, round 2 alternates between two adjacent ones, and the other two mix them.
inline constexpr int probe_count = 4 * probe_values;

/// Returns a number derived from the recipe's constants, for example one that makes the declared batch sizes consistent.
constexpr long long related_probe(config const& value, int number) {
  auto const& batch = value.accumulate;
  auto const ratio = [](long long a, long long b) { return b > 0 && a > 0 ? a / b : 1; };
  auto const times = [](long long a, long long b) {
    long long result = 0;
    return a > 0 && b > 0 && !__builtin_mul_overflow(a, b, &result) ? result : 1;
  };
  switch (number) {
    case 0:
      return ratio(batch.global_batch, batch.micro_batch);
    case 1:
      return ratio(batch.global_batch, batch.count);
    case 2:
      return times(batch.micro_batch, batch.count);
    case 3:
      return value.objective.group > 0 ? value.objective.group : 1;
    case 4:
      return value.data.rows > 0 ? value.data.rows : 1;
    case 5:
      return batch.micro_batch > 0 ? batch.micro_batch : 1;
    default:
      return value.run.world_size;
  }
}
constexpr double related_real_probe(config const& value, int number) {
  switch (number) {
    case 0:
      return value.loss_scale.floor;
    case 1:
      return value.loss_scale.initial;
    case 2:
      return value.schedule.min_lr;
    case 3:
      return value.run.learning_rate;
    case 4:
      return 1e30;
    default:
      return std::numeric_limits<double>::max();
  }
}
inline constexpr int related_probes = 7;

/// Returns the configuration with probe numbers in place of open numbers. A template, so that a recipe without open numbers costs nothing.
constexpr config with_probe(std::same_as<config> auto const& open, int probe) {
  config value = open;
  int place = 0;
  for_each_given(value, [&](char const*, char const*, auto& to) {
    using type = std::remove_reference_t<decltype(to)>;
    if (probe >= probe_count) {
      if constexpr (std::is_floating_point_v<type>) {
        to = related_real_probe(open, probe - probe_count);
      } else {
        to = static_cast<type>(related_probe(open, probe - probe_count));
      }
    } else {
      int const round = probe / probe_values;
      int const index = (probe + (round == 1   ? place % 2
                                  : round == 2 ? place * 5
                                  : round == 3 ? place * place * 7
                                               : 0)) %
                        probe_values;
      if constexpr (std::is_floating_point_v<type>) {
        to = real_probes[index];
      } else {
        to = static_cast<type>(whole_probes[index]);
      }
    }
    ++place;
  });
  value.given = 0;
  return value;
}

}  // namespace keel::detail
