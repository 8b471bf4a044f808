// Definitions for triage_nonfinite.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <keel/diagnose/curve_values.hpp>
#include <keel/diagnose/triage_nonfinite.hpp>
#include <keel/metrics/number_format.hpp>
#include <string>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// The non-finite updates in the record.
struct nonfinite_record {
  std::int64_t first = -1;  ///< number of updates before the first of them
  std::int64_t count = 0;
  std::int64_t overflows = 0;  ///< overflows of the loss scale
  std::int64_t longest = 0;    ///< longest run of consecutive skipped attempts
  run_event const* incident = nullptr;
  bool ended_the_run = false;
};

KEEL_BODY nonfinite_record nonfinite_record_of(run_history const& history) {
  nonfinite_record found;
  std::int64_t row = 0, attempt_before = -1;
  auto const first_at = [&](std::int64_t update) { found.first = found.first < 0 ? update : std::min(found.first, update); };
  for (run_event const& event : history.events) {
    if (event.name == "skipped") {
      std::string const why = text_of(event, "why");
      bool const overflows = why.find("overflow of the loss scale") != std::string::npos;
      if (!overflows && why.find("non-finite") == std::string::npos) continue;
      (overflows ? found.overflows : found.count) += 1;
      if (!overflows) first_at(event.update);
      std::int64_t const attempt = integer_in(event.details, "attempt");
      row = attempt == attempt_before + 1 ? row + 1 : 1;
      attempt_before = attempt;
      found.longest = std::max(found.longest, row);
    } else if (event.name == "incident") {
      // The first of several incidents counts, because it may have caused the others.
      if (found.incident == nullptr) found.incident = &event;
      first_at(event.update);
    } else if (event.name == "failed") {
      std::string const message = text_of(event, "message");
      if (message.find("non-finite") == std::string::npos && message.find("[E08]") == std::string::npos) continue;
      found.ended_the_run = true;
      if (found.incident == nullptr) first_at(event.update);
      ++found.count;
    }
  }
  return found;
}

/// Returns how far a curve left its usual values just before an update: the largest of the last few values divided by the median of those
/// before. Returns 1 if there are too few values.
KEEL_BODY double departure_before(std::span<curve_point const> points, std::int64_t update) {
  std::vector<double> const all = values_between(points, -1, update);
  constexpr std::size_t newest = 5;
  if (all.size() < 2) return 1.0;
  std::size_t const few = std::min(newest, all.size() / 2);
  std::vector<double> const usual(all.begin(), all.end() - static_cast<std::ptrdiff_t>(few));
  double const middle = median_of(usual);
  double largest = 0.0;
  for (std::size_t i = all.size() - few; i < all.size(); ++i)
    if (std::isfinite(all[i])) largest = std::max(largest, std::abs(all[i]));
  return middle > 0.0 ? largest / middle : 1.0;
}

/// Returns true for operations that return NaN or infinity for finite arguments of usual size.
KEEL_BODY bool has_a_domain(std::string const& operation) {
  for (char const* const one : {"log",   "sqrt", "div", "pow",    "reciprocal", "exp",  "acos", "asin",    "atan",  "norm",
                                "Log",   "Sqrt", "Div", "Pow",    "Reciprocal", "Exp",  "Acos", "Asin",    "Norm",  "Cdist",
                                "cdist", "std",  "Std", "erfinv", "cosh",       "sinh", "tan",  "digamma", "lgamma"}) {
    if (operation.find(one) != std::string::npos) return operation.find("log_softmax") == std::string::npos;
  }
  return false;
}

KEEL_BODY double largest_number_in(nlohmann::json const& value) {
  if (value.is_number()) return value.get<double>();
  double largest = 0.0;
  if (value.is_structured()) {
    for (auto const& inner : value) largest = std::max(largest, largest_number_in(inner));
  }
  return largest;
}

KEEL_BODY std::vector<triage_finding> triage_of_nonfinite(run_history const& history) {
  nonfinite_record const of = nonfinite_record_of(history);
  std::vector<triage_finding> found;
  auto const add = [&](trouble cause, double confidence, std::vector<std::string> evidence) {
    found.push_back({cause, confidence, std::move(evidence)});
  };
  auto const at = [&](std::int64_t update) { return "update " + std::to_string(update + 1); };

  // A dynamic scale overflows occasionally by design; several overflows in a row, or a scale at its minimum, are a problem.
  auto const scales = points_of(history, "loss_scale");
  if (of.overflows > 0) {
    std::vector<double> const values = values_of(scales);
    double const highest = values.empty() ? 0.0 : *std::max_element(values.begin(), values.end());
    double const now = values.empty() ? highest : values.back();
    auto const attempts = static_cast<double>(std::max<std::int64_t>(history.updates + history.skipped, 1));
    double const share = static_cast<double>(of.overflows) / attempts;
    bool const has_fallen = highest > 0.0 && now < highest / 256.0;
    bool const blocks = of.longest >= 8 && of.overflows >= 8;
    if (share > 0.1 || has_fallen || blocks)
      add(trouble::loss_scale, blocks || share > 0.25 ? 0.9 : 0.7,
          {std::to_string(of.overflows) + " updates were skipped because the loss scale overflowed, at most " +
               std::to_string(of.longest) + " in a row",
           formatted("the loss scale went from %.4g to %.4g", highest, now)});
  }
  if (of.count == 0 && of.incident == nullptr) return found;
  double const scale = [&] {
    std::vector<double> const values = values_of(scales);
    if (!values.empty()) return values.back();
    // If every update was skipped, no line has a loss scale, but the recipe has its initial value.
    auto const of_recipe = history.recipe.is_object() ? history.recipe.find("loss_scale") : history.recipe.end();
    return history.recipe.is_object() && of_recipe != history.recipe.end() ? largest_number_in(*of_recipe) : 1.0;
  }();

  double const norm = departure_before(points_of(history, "gradient_norm"), of.first);
  double const loss = departure_before(points_of(history, "loss"), of.first);
  bool const spikes = norm > 5.0 || loss > 3.0;
  std::string const before = formatted("before %s the gradient norm was %.3g times and the loss %.3g times its usual value",
                                       at(of.first).c_str(), norm, loss);
  std::string const end =
      of.ended_the_run ? "it ended the run" : std::to_string(of.count) + " updates were skipped because of it";
  std::string place, operation, forward, value, words, meant;
  bool has_rows = false, every_row = false;
  if (of.incident != nullptr) {
    auto const& details = of.incident->details;
    words = text_of(*of.incident, "words");
    if (details.contains("origin") && details["origin"].is_object()) {
      auto const& origin = details["origin"];
      auto const text = [&](char const* key) {
        return origin.contains(key) && origin[key].is_string() ? origin[key].get<std::string>() : std::string();
      };
      place = text("place");
      operation = text("operation");
      forward = text("forward_operation");
      value = text("value");
      meant = text("given");
      has_rows = origin.contains("rows") && !origin["rows"].empty();
      every_row = origin.contains("every_row");
    }
  }
  std::vector<std::string> const all{at(of.first) + (words.empty() ? " was not finite" : ": " + words), before, end};
  if (place == "transient") add(trouble::hardware, 0.95, all);
  if (place == "batch") add(trouble::bad_sample, 0.97, all);
  bool const in_the_model = place == "parameter" || place == "optimizer_state" || place == "buffer";
  bool const has_domain = has_a_domain(operation) || has_a_domain(forward);
  bool const of_some_rows = has_rows && !every_row;
  bool const repeats = of.longest >= 3;

  double blow_up = spikes ? 0.75 : 0.15;
  if (norm > 100.0 || loss > 100.0) blow_up = 0.9;
  if (every_row) blow_up += 0.05;
  if (in_the_model) blow_up = std::max(blow_up, 0.6);
  double numerics = has_domain ? 0.7 : 0.25;
  if (has_domain && !spikes) numerics = 0.85;
  double sample = of_some_rows ? 0.5 : 0.1;
  if (of_some_rows && !has_domain && !spikes) sample = 0.85;
  if (of_some_rows && !repeats && spikes && blow_up < 0.9) sample = 0.6;
  if (place.empty() || place == "unknown") {
    sample = std::max(sample, !spikes && of.longest <= 1 ? 0.55 : 0.3);
    numerics = std::max(numerics, !spikes && of.longest > 1 ? 0.55 : 0.3);
  }
  // A cast to a narrower type overflows to infinity; in the backward pass the loss scale is the cause, if there is one.
  bool const is_cast = operation.find("::to") != std::string::npos || operation.find("opy") != std::string::npos;
  bool const by_scale = place == "backward" && scale >= 64.0 && value != "nan" && (is_cast || every_row) && !spikes;
  if (by_scale) {
    add(trouble::loss_scale, 0.88, {all[0], formatted("the loss scale is %.4g and is never lowered", scale), end});
    numerics = std::min(numerics, 0.5);
  } else if ((place == "forward" || place == "backward") && !spikes && (!of_some_rows || is_cast)) {
    numerics = std::max(numerics, is_cast ? 0.75 : 0.6);
  }
  if (place == "transient" || place == "batch") blow_up = numerics = sample = 0.1;
  add(trouble::blow_up, std::min(blow_up, 0.97), all);
  add(trouble::layer_numerics, numerics, all);
  if (place != "batch") add(trouble::bad_sample, sample, all);
  return found;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
