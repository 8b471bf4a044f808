// Definitions for triage_resume.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <keel/diagnose/curve_values.hpp>
#include <keel/diagnose/triage_resume.hpp>
#include <keel/metrics/number_format.hpp>
#include <map>
#include <string>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Returns the number of consecutive batches after a resume that had occurred before it in the same epoch.
KEEL_BODY std::int64_t repeated_batches(run_history const& history, std::int64_t resumed_at) {
  auto const& all = history.batches;
  auto const first = std::find_if(all.begin(), all.end(), [&](seen_batch const& one) { return one.update > resumed_at; });
  if (first == all.end() || first == all.begin()) return 0;
  std::map<std::string, std::int64_t> seen;
  for (auto one = all.begin(); one != first; ++one) {
    if (one->epoch == first->epoch) ++seen[one->checksum];
  }
  // Batches that had already repeated before the resume do not count.
  std::int64_t row = 0;
  for (auto one = first; one != all.end() && one->epoch == first->epoch; ++one, ++row) {
    auto const before = seen.find(one->checksum);
    if (before == seen.end() || before->second != 1) break;
  }
  return row;
}

KEEL_BODY std::vector<triage_finding> triage_of_resume(run_history const& history) {
  std::vector<triage_finding> found;
  auto const add = [&](trouble cause, double confidence, std::vector<std::string> evidence) {
    found.push_back({cause, confidence, std::move(evidence)});
  };
  nlohmann::json loaded;
  auto const rates = points_of(history, "lr");
  for (run_event const& event : history.events) {
    if ((event.name == "resumed" || event.name == "resumed_from") && event.details.contains("state") &&
        event.details["state"].is_object())
      loaded = event.details["state"];
    if (event.name != "begins") continue;
    if (loaded.is_null() || !event.details.contains("state") || !event.details["state"].is_object()) continue;
    nlohmann::json const now = event.details["state"];
    auto const differs = [&](char const* key) {
      return loaded.value(key, nlohmann::json()) != now.value(key, nlohmann::json());
    };
    auto const is_set = [](nlohmann::json const& of, char const* key) {
      return of.contains(key) && of[key].is_boolean() && of[key].get<bool>();
    };
    std::string const at = "the resume at update " + std::to_string(event.update);
    if (differs("optimizer"))
      add(trouble::optimizer_not_resumed, 0.95, {"after " + at + " the optimizer state differed from the checkpoint"});
    if (differs("weights"))
      add(trouble::optimizer_not_resumed, 0.6, {"after " + at + " the weights differed from the checkpoint"});
    if (differs("rates"))
      add(trouble::schedule_not_resumed, 0.9,
          {"after " + at + " the optimizer's learning rates were " + now["rates"].dump() + ", and the checkpoint has " +
           loaded["rates"].dump()});
    bool const reseeded = differs("seed") || (is_set(now, "is_reseeded") && !is_set(loaded, "is_reseeded"));
    if (reseeded) {
      add(trouble::random_state_not_resumed, 0.95, {"after " + at + " LibTorch's generator was seeded again"});
    } else if (differs("random")) {
      add(trouble::random_state_not_resumed, 0.55, {"after " + at + " random numbers were drawn before the first update"});
    }
    if (std::int64_t const again = repeated_batches(history, event.update); again >= 3)
      add(trouble::data_not_resumed, 0.95,
          {"after " + at + " at least " + std::to_string(again) +
           " updates trained on batches that the same epoch had already used"});
    // The program's scheduler starts again from the initial rate.
    std::vector<double> const before = values_between(rates, -1, event.update),
                              after = values_between(rates, event.update, history.updates);
    if (before.size() >= 4 && after.size() >= 2) {
      double const jump = std::abs(after.front() - before.back()) / std::max(std::abs(before.back()), 1e-300);
      double const usual = std::abs(before.back() - before[before.size() - 2]) / std::max(std::abs(before.back()), 1e-300);
      bool const as_at_first = std::abs(after.front() - before.front()) <= 0.02 * std::abs(before.front());
      // Visible from the second update on, if the program's scheduler sets the rate after the update.
      double const highest_before = *std::max_element(before.begin(), before.end());
      double rises_before = 0.0;
      for (std::size_t i = 1; i < before.size(); ++i) {
        if (before[i - 1] > 0.0) rises_before = std::max(rises_before, before[i] / before[i - 1]);
      }
      bool const goes_back = [&] {
        for (std::size_t i = 1; i < std::min<std::size_t>(after.size(), 6); ++i) {
          bool const is_up = after[i] > 1.2 * after[i - 1] && after[i] > 1.2 * before.back();
          if (is_up && after[i] <= 1.02 * highest_before && after[i] / after[i - 1] > 1.5 * rises_before) return true;
        }
        return false;
      }();
      bool const restarted_lower = last_event(history, "restarted") != nullptr || last_event(history, "rolled_back") != nullptr;
      if (jump > 0.1 && jump > 5.0 * usual && !restarted_lower)
        add(trouble::schedule_not_resumed, as_at_first ? 0.9 : 0.6,
            {formatted("the learning rate was %.4g before the resume at update %lld and %.4g after it", before.back(),
                       static_cast<long long>(event.update), after.front())});
      else if (goes_back && !restarted_lower)
        add(trouble::schedule_not_resumed, 0.9,
            {formatted("within a few updates after the resume at update %lld the learning rate, %.4g before it, rose back to "
                       "an earlier value",
                       static_cast<long long>(event.update), before.back())});
    }
  }
  return found;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
