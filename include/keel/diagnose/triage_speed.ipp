// Definitions for triage_speed.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <keel/diagnose/curve_values.hpp>
#include <keel/diagnose/triage_speed.hpp>
#include <keel/metrics/number_format.hpp>
#include <string>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// The contents of a profile's summary.md, as shares of its time.
struct profile_shares {
  bool is_known = false;
  double communication = 0.0;
  double idle = 0.0;
  double idle_of_update = 0.0;  ///< milliseconds
  double idle_in_data = 0.0;    ///< the longest gaps during the data phase
  std::string busiest;          ///< the operation with small calls that takes the most time
  double calls = 0.0;           ///< its calls per update
  double per_call = 0.0;        ///< microseconds per call
  double share = 0.0;           ///< its share of the profile's time
  double all_calls = 0.0;       ///< calls per update of all operations that the summary lists
  double all_time = 0.0;        ///< their time, in milliseconds per update
};

KEEL_BODY profile_shares shares_of(std::string const& summary) {
  profile_shares found;
  double total = 0.0, updates = 1.0;
  std::string table;
  if (auto const to = summary.find(" to "); summary.starts_with("# Updates ") && to < 60)
    updates = std::max(1.0, std::strtod(summary.c_str() + to + 4, nullptr) - std::strtod(summary.c_str() + 10, nullptr) + 1.0);
  for (std::size_t begin = 0; begin < summary.size();) {
    std::size_t const end = std::min(summary.find('\n', begin), summary.size());
    std::string const line = summary.substr(begin, end - begin);
    begin = end + 1;
    std::vector<std::string> cells;
    for (std::size_t at = 0; line.starts_with("|") && at + 1 < line.size();) {
      std::size_t const next = std::min(line.find('|', at + 1), line.size());
      cells.push_back(line.substr(at + 1, next - at - 1));
      at = next;
    }
    if (cells.empty()) continue;
    if (cells[0].find("the training thread") != std::string::npos) table = "kinds";
    if (cells[0].find("phase") != std::string::npos) table = "phases";
    if (cells[0].find("operation,") != std::string::npos) table = "operations";
    if (cells[0].find("the longest gaps") != std::string::npos) table = "gaps";
    auto const number = [&](std::size_t i) { return cells.size() > i ? std::strtod(cells[i].c_str(), nullptr) : 0.0; };
    if (table == "kinds" && cells.size() >= 3) {
      total += number(1);
      if (cells[0].find("communication") != std::string::npos) found.communication = number(2) / 100.0;
      if (cells[0].find("idle") != std::string::npos) {
        found.idle = number(2) / 100.0;
        found.idle_of_update = number(1) / updates;
        found.is_known = true;
      }
    }
    if (table == "operations" && cells.size() >= 5 && number(3) > 0.0) {
      double const per_call = 1e3 * number(1) / number(3);
      found.all_calls += number(3) / updates;
      found.all_time += number(1) / updates;
      if (per_call < 30.0 && number(2) / 100.0 > found.share) {
        found.busiest = cells[0];
        found.share = number(2) / 100.0;
        found.calls = number(3) / updates;
        found.per_call = per_call;
      }
    }
    if (table == "gaps" && cells.size() >= 3 && cells[2].find("data") != std::string::npos && total > 0.0)
      found.idle_in_data += number(1) / total;
  }
  return found;
}

KEEL_BODY std::vector<triage_finding> triage_of_speed(run_history const& history) {
  std::vector<triage_finding> found;
  auto const add = [&](trouble cause, double confidence, std::vector<std::string> evidence) {
    found.push_back({cause, confidence, std::move(evidence)});
  };
  auto const totals = points_of(history, "time.total");
  constexpr std::size_t least = 20;
  if (totals.size() < least) return found;
  // Medians of the second half, after any warm-up.
  auto const usual = [&](std::string const& key) {
    auto const points = points_of(history, key);
    return points.empty() ? 0.0 : median_of(values_of(points.subspan(points.size() / 2)));
  };
  double const total = usual("time.total");
  auto const share = [&](char const* phase) { return total > 0.0 ? usual(std::string("time.") + phase) / total : 0.0; };
  // Medians do not show occasional waits, such as one per epoch or per fifth batch. A single wait does not matter.
  auto const now_and_then = [&](char const* phase) {
    auto const waits = values_of(points_of(history, std::string("time.") + phase));
    auto const whole = values_of(totals);
    double of_phase = 0.0, of_all = 0.0;
    std::size_t long_ones = 0;
    std::size_t const count = std::min(waits.size(), whole.size());
    for (std::size_t i = 0; i < count; ++i) {
      of_phase += waits[i];
      of_all += whole[i];
      long_ones += waits[i] > 2.0 * total ? 1 : 0;
    }
    return long_ones >= std::max<std::size_t>(4, count / 50) && of_all > 0.0 ? of_phase / of_all : 0.0;
  };
  double const data = std::max(share("data"), now_and_then("data"));
  double const saving_and_evaluating = share("saving") + share("evaluating");
  double const passes = share("forward") + share("backward") + share("update");
  double const periodic_hook_share = [&] {
    auto const whole = values_of(totals);
    std::vector<double> rest = whole;
    for (char const* const phase :
         {"time.data", "time.forward", "time.backward", "time.update", "time.saving", "time.evaluating"}) {
      auto const values = values_of(points_of(history, phase));
      for (std::size_t i = 0; i < std::min(rest.size(), values.size()); ++i) rest[i] -= values[i];
    }
    double of_rest = 0.0, of_all = 0.0;
    std::size_t long_ones = 0;
    for (std::size_t i = 0; i < rest.size(); ++i) {
      of_rest += std::max(0.0, rest[i]);
      of_all += whole[i];
      long_ones += rest[i] > 2.0 * total ? 1 : 0;
    }
    return long_ones >= std::max<std::size_t>(4, rest.size() / 50) && of_all > 0.0 ? of_rest / of_all : 0.0;
  }();
  double const none = std::max({0.0, 1.0 - data - passes - saving_and_evaluating, periodic_hook_share});
  double const padding = usual("padding");
  run_event const* const slowdown = last_event(history, "slowdown");
  std::string const slower_in = slowdown == nullptr ? std::string() : text_of(*slowdown, "phase");
  std::string const slower = slowdown == nullptr
                                 ? std::string()
                                 : "after update " + std::to_string(slowdown->update) + ": " + text_of(*slowdown, "message");

  profile_shares profile;
  for (run_profile const& one : history.profiles) {
    profile_shares const here = shares_of(one.summary);
    if (here.is_known) profile = here;
  }

  if (data > 0.3 && total > 1.0)
    add(trouble::waiting_for_data, data > 0.5 ? 0.9 : 0.7,
        {formatted("an update takes %.3g ms and waits for data for %.0f %% of it", total, 100.0 * data)});
  // In a custom loop all code between two calls counts as waiting for data.
  if (data > 0.3 && total > 1.0)
    add(trouble::host_waits, 0.4, {formatted("%.0f %% of the time of an update passes between batches", 100.0 * data)});
  if (slower_in == "data") add(trouble::waiting_for_data, 0.85, {slower});
  if (padding > 0.4)
    add(trouble::padding, padding > 0.6 ? 0.85 : 0.7, {formatted("%.0f %% of the ids are padding", 100.0 * padding)});
  if (profile.communication > 0.25)
    add(trouble::communication, profile.communication > 0.4 ? 0.9 : 0.75,
        {formatted("collectives take %.0f %% of the profiled time", 100.0 * profile.communication)});
  double const waits = std::max(0.0, profile.idle - profile.idle_in_data);
  if (profile.is_known && waits > 0.4 && profile.idle_of_update > 3.0 && data < 0.3)
    add(trouble::host_waits, waits > 0.6 ? 0.85 : 0.65,
        {formatted("in %.0f %% of the profiled time no LibTorch operation runs, and the wait is not for data", 100.0 * waits)});
  // A backward pass takes at least as long as its forward pass if most parameters are trained.
  double const forward = usual("time.forward"), backward = usual("time.backward");
  run_event const* const begins = first_event(history, "begins");
  bool const is_trained =
      begins == nullptr || 3 * integer_in(begins->details, "frozen") < integer_in(begins->details, "parameters");
  if (is_trained && forward > 4.0 * backward && forward > 3.0 && !profile.is_known)
    add(trouble::host_waits, 0.6,
        {formatted("the forward pass takes %.3g ms and the backward pass %.3g ms: work without gradients, or a wait", forward,
                   backward)});
  if (none > 0.4 && (total > 5.0 || periodic_hook_share > 0.4))
    add(trouble::host_waits, 0.7, {formatted("%.0f %% of an update's %.3g ms is outside all phases", 100.0 * none, total)});
  // A deep model also has many calls, but none that is so short and takes this share of the time.
  if (profile.is_known && profile.calls > 250.0 && profile.share > 0.2)
    add(trouble::slow_kernels, 0.75,
        {formatted("%.0f calls per update of%sat %.1f microseconds each take %.0f %% of the time", profile.calls,
                   profile.busiest.c_str(), profile.per_call, 100.0 * profile.share)});
  // Thousands of calls, each dominated by its launch overhead.
  double const per_call = profile.all_calls > 0.0 ? 1e3 * profile.all_time / profile.all_calls : 0.0;
  if (profile.is_known && profile.all_calls > 1500.0 && per_call < 8.0 && profile.share <= 0.2)
    add(trouble::slow_kernels, 0.72,
        {formatted("%.0f operations per update at %.1f microseconds each: launch overhead dominates", profile.all_calls,
                   per_call)});
  if (slower_in == "forward" || slower_in == "backward" || slower_in == "update") {
    add(trouble::slow_kernels, profile.is_known && waits > 0.4 ? 0.5 : 0.75, {slower});
    add(trouble::host_waits, 0.45, {slower});
  }
  if (slower_in == "none") add(trouble::host_waits, 0.75, {slower});
  double const utilisation = usual("mfu");
  if (utilisation > 0.0 && utilisation < 0.05 && total > 50.0 && data < 0.3 && none < 0.3)
    add(trouble::slow_kernels, 0.65, {formatted("%.1f %% of the device's peak throughput is used", 100.0 * utilisation)});
  return found;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
