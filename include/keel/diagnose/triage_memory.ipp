// Definitions for triage_memory.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <keel/diagnose/curve_values.hpp>
#include <keel/diagnose/triage_memory.hpp>
#include <keel/metrics/number_format.hpp>
#include <string>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY bool says_memory_ran_out(run_event const& event) {
  if (event.name == "failed") {
    std::string const message = text_of(event, "message");
    return event.details.contains("memory") || message.find("memory ran out") != std::string::npos ||
           message.find("allocate") != std::string::npos || message.find("ut of memory") != std::string::npos;
  }
  // A rung that was taken because the allocator was slow has this message.
  return event.name == "rung" && text_of(event, "message").find("had to give its cache back") == std::string::npos;
}

/// The growth of a curve from its first part to its last, and the share of its steps that go up.
struct gain {
  double bytes = 0.0;
  double from = 0.0;
  double steady = 0.0;
  double late = 0.0;        ///< growth in the last half
  bool rises_late = false;  ///< every part of the last half is above the one before
};
KEEL_BODY gain gain_of(std::span<curve_point const> points) {
  // The first updates allocate permanent memory: gradients and the optimizer's state.
  constexpr std::size_t filling = 4, parts = 8;
  if (points.size() < filling + parts) return {};
  auto const rest = points.subspan(filling);
  std::vector<double> least;
  for (std::size_t i = 0; i < parts; ++i) {
    auto const part = rest.subspan(i * rest.size() / parts, (i + 1) * rest.size() / parts - i * rest.size() / parts);
    least.push_back(
        std::min_element(part.begin(), part.end(), [](auto const& a, auto const& b) { return a.value < b.value; })->value);
  }
  std::size_t rises = 0;
  for (std::size_t i = 1; i < parts; ++i) rises += least[i] > least[i - 1] ? 1U : 0U;
  return {least.back() - least.front(), least.front(), static_cast<double>(rises) / (parts - 1),
          least.back() - least[parts / 2], std::is_sorted(least.begin() + parts / 2, least.end(), std::less_equal<>())};
}

KEEL_BODY std::vector<triage_finding> triage_of_memory(run_history const& history) {
  std::vector<triage_finding> found;
  auto const add = [&](trouble cause, double confidence, std::vector<std::string> evidence) {
    found.push_back({cause, confidence, std::move(evidence)});
  };
  auto const shortage = std::find_if(history.events.begin(), history.events.end(), says_memory_ran_out);
  bool const ran_out = shortage != history.events.end();
  auto const held = points_of(history, "memory.held");
  auto const in_units = [](double bytes) {
    return bytes < (1 << 20) ? formatted("%.1f KiB", bytes / (1 << 10)) : formatted("%.1f MiB", bytes / (1 << 20));
  };

  run_event const* const grows = last_event(history, "memory_grows");
  bool const is_slope = grows != nullptr && text_of(*grows, "how").find("slope") != std::string::npos;
  gain const of_held = gain_of(held);
  // A cache that fills up and then stays constant is not a leak.
  bool const goes_on = ran_out || held.size() < 16 || of_held.late > 0.1 * of_held.bytes;
  bool const is_staircase = goes_on && grows != nullptr && text_of(*grows, "how").find("staircase") != std::string::npos;
  bool const leaks = of_held.steady > 0.99 && of_held.bytes > 0.02 * of_held.from;
  bool const leaks_late = of_held.rises_late && of_held.late > 0.2 * of_held.from;
  auto const reserved_points = points_of(history, "memory.reserved");
  std::vector<curve_point> unheld;
  for (std::size_t i = 0; i < std::min(held.size(), reserved_points.size()); ++i)
    unheld.push_back({held[i].update, reserved_points[i].value - held[i].value});
  gain const of_unheld = gain_of(unheld);

  if (is_staircase || leaks_late || (leaks && (ran_out || of_held.bytes > of_held.from))) {
    add(trouble::memory_leak, is_staircase && !ran_out ? 0.9 : 0.85,
        {formatted("memory held between updates grew by %s from near the beginning of the run to its end, and rises steadily",
                   in_units(of_held.bytes).c_str())});
  }
  // A process that fills its caches grows a little.
  bool const spreads = of_unheld.steady > 0.7 && of_unheld.bytes > 0.15 * (of_unheld.from + of_held.from);
  if (spreads && (is_slope || ran_out || of_unheld.bytes > 0.4 * (of_unheld.from + of_held.from))) {
    add(trouble::fragmentation, is_slope ? 0.85 : 0.6,
        {formatted("reserved memory that no tensor holds grew by %s", in_units(of_unheld.bytes).c_str())});
    if (!is_staircase && !leaks) add(trouble::memory_leak, 0.4, {"memory grows"});
  }
  if (!ran_out) return found;

  std::string const during = [&] {
    auto const memory = shortage->details.find("memory");
    if (memory != shortage->details.end() && memory->is_object() && memory->contains("during") &&
        (*memory)["during"].is_string())
      return (*memory)["during"].get<std::string>();
    return text_of(*shortage, "message").find("inside the optimizer's step") != std::string::npos ? std::string("update")
                                                                                                  : std::string();
  }();
  auto const at_failure = [&](char const* key) { return number_of(*shortage, "memory", key); };
  double const peak = std::max({at_failure("forward"), at_failure("backward"), at_failure("update"), at_failure("held"), 1.0});
  run_event const* const begins = last_event(history, "begins");
  auto const bytes_at_begin = [&](char const* key) {
    return begins == nullptr ? 0.0 : static_cast<double>(integer_in(begins->details, key));
  };
  double const trained = bytes_at_begin("trained_bytes");
  std::string const where =
      "memory ran out in update " + std::to_string(shortage->update + 1) + (during.empty() ? "" : ", during " + during);

  bool const first_updates = begins != nullptr && shortage->update - begins->update <= 1;
  bool const has_no_state = bytes_at_begin("optimizer_bytes") == 0.0;
  double state = 0.15;
  if (first_updates && has_no_state && during == "update") state = 0.9;
  if (first_updates && has_no_state && shortage->update == begins->update + 1 && during != "evaluating") state = 0.7;
  // The parameters take most of the memory, and the moments would be added to them.
  if (first_updates && has_no_state && trained > 0.4 * peak) state = std::max(state, 0.6);
  if (during == "update" && !first_updates) state = 0.5;
  if (during == "evaluating" || during == "between updates") state = 0.05;

  bool const outside = during == "evaluating" || during == "between updates";
  double const between = [&] {
    auto const values = values_of(points_of(history, "memory.between"));
    return values.empty() ? 0.0 : *std::max_element(values.begin(), values.end());
  }();
  double const in_updates = [&] {
    double highest = 0.0;
    for (char const* const key : {"memory.forward", "memory.backward"}) {
      for (double const value : values_of(points_of(history, key))) highest = std::max(highest, value);
    }
    return highest;
  }();
  if (outside)
    add(trouble::graph_in_evaluation, during == "evaluating" ? 0.9 : 0.75,
        {where, formatted("earlier updates took %s at most, and code between updates %s", in_units(in_updates).c_str(),
                          in_units(between).c_str())});

  double const pieces = at_failure("pieces");
  double const accumulated = std::max(at_failure("accumulated") - trained, 0.0);
  bool const keeps = pieces > 1.0 && accumulated > 0.03 * peak && !outside;
  if (keeps)
    add(trouble::graphs_in_accumulation, 0.9,
        {where, formatted("before micro-batch %.0f, %s more was held than before the first, excluding gradients", pieces,
                          in_units(accumulated).c_str())});

  double const above = peak - (held.empty() ? 0.0 : held.back().value);
  // Between updates a program evaluates, or loads the next batch, which may be too large.
  bool const evaluates = first_event(history, "evaluated") != nullptr;
  double activations = outside ? (during == "between updates" && !evaluates ? 0.6 : 0.2) : 0.7;
  if (during == "forward" || during == "backward") activations = above > 0.3 * peak ? 0.8 : 0.65;
  if (leaks || leaks_late || is_staircase) activations = 0.3;
  if (keeps) activations = 0.5;
  if (state > 0.6) activations = 0.4;
  add(trouble::activations, activations,
      {where, formatted("peak memory was %s, of which tensors of the update were %s", in_units(peak).c_str(),
                        in_units(above).c_str())});
  add(trouble::optimizer_state, state, {where, formatted("trainable parameters take %s", in_units(trained).c_str())});
  return found;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
