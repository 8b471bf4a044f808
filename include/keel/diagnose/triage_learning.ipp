// Definitions for triage_learning.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <keel/diagnose/curve_values.hpp>
#include <keel/diagnose/triage_learning.hpp>
#include <keel/metrics/number_format.hpp>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// A summary of the layer measurements.
struct layer_summary {
  double update_ratio = 0.0;  ///< median over layers and measurements, without zeros; 0 if unknown
  std::size_t layers = 0;
  std::vector<std::string> without_gradient;  ///< layers whose gradient was 0 at every measurement
  std::vector<std::string> unmoved;           ///< layers whose parameters never changed although they had a gradient
  std::vector<std::string> died;              ///< layers whose gradient was not 0 at the first measurement and 0 at the last
  std::vector<std::string> of_zeros;          ///< layers whose parameters were all 0 at the first measurement
  double smallest = 0.0;                      ///< smallest nonzero gradient norm of a layer at the first measurement
  double largest = 0.0;
  std::string smallest_layer;
  std::string largest_layer;
  double activation = 0.0;  ///< standard deviation of a unit's output at the first measurement, farthest from 1; 0 if unknown
  std::string unit;
};

KEEL_BODY layer_summary layers_of(run_history const& history) {
  layer_summary found;
  for_each_layer(history, "grad_norm", [&](std::string const& layer, std::span<curve_point const> points) {
    ++found.layers;
    double const first = points.front().value;
    if (std::all_of(points.begin(), points.end(), [](curve_point const& one) { return one.value == 0.0; })) {
      found.without_gradient.push_back(layer);
    } else if (first != 0.0 && points.back().value == 0.0) {
      found.died.push_back(layer);
    }
    if (!std::isfinite(first) || first <= 0.0) return;
    if (found.smallest == 0.0 || first < found.smallest)
      std::tie(found.smallest, found.smallest_layer) = std::tie(first, layer);
    if (first > found.largest) std::tie(found.largest, found.largest_layer) = std::tie(first, layer);
  });
  // A layer without a gradient moves only by weight decay, which says nothing about the learning rate.
  std::vector<double> ratios;
  for_each_layer(history, "update_ratio", [&](std::string const& layer, std::span<curve_point const> points) {
    if (std::find(found.without_gradient.begin(), found.without_gradient.end(), layer) != found.without_gradient.end()) return;
    if (std::all_of(points.begin(), points.end(), [](curve_point const& one) { return one.value == 0.0; }))
      found.unmoved.push_back(layer);
    for (curve_point const& one : points) {
      if (std::isfinite(one.value) && one.value > 0.0) ratios.push_back(one.value);
    }
  });
  if (!ratios.empty()) found.update_ratio = median_of(std::move(ratios));
  for_each_layer(history, "param_norm", [&](std::string const& layer, std::span<curve_point const> points) {
    if (points.front().value == 0.0) found.of_zeros.push_back(layer);
  });
  for_each_layer(history, "std", [&](std::string const& unit, std::span<curve_point const> points) {
    double const here = points.front().value;
    if (!std::isfinite(here) || here <= 0.0) return;
    if (found.activation == 0.0 || std::abs(std::log(here)) > std::abs(std::log(found.activation)))
      std::tie(found.activation, found.unit) = std::tie(here, unit);
  });
  return found;
}

KEEL_BODY std::string names_in(std::vector<std::string> const& names) {
  constexpr std::size_t most = 4;
  std::string words;
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i) words += (i > 0 ? ", " : "") + names[i];
  if (names.size() > most) words += " and " + std::to_string(names.size() - most) + " more";
  return words;
}

/// Counts changes of direction, each after a change of more than `least`.
KEEL_BODY std::int64_t turns_of(std::vector<double> const& values, double least) {
  std::int64_t swings = 0;
  double high = -INFINITY, low = INFINITY;
  int direction = 0;
  for (double const value : values) {
    high = std::max(high, value);
    low = std::min(low, value);
    if (direction <= 0 && value - low > least) {
      ++swings;
      direction = 1;
      high = value;
    } else if (direction >= 0 && high - value > least) {
      ++swings;
      direction = -1;
      low = value;
    }
  }
  return swings;
}

/// Counts swings of the loss of at least `least` in the last half of a run. Smooths over three updates, so that a single unusual batch does
/// not count.
KEEL_BODY std::int64_t swings_of(std::span<curve_point const> points, double least) {
  constexpr std::size_t width = 3;
  std::vector<double> smooth;
  for (std::size_t i = points.size() / 2; i + width <= points.size(); ++i) {
    std::vector<double> here;
    for (std::size_t k = 0; k < width; ++k) here.push_back(points[i + k].value);
    if (double const middle = median_of(std::move(here)); std::isfinite(middle)) smooth.push_back(middle);
  }
  return turns_of(smooth, least);
}

/// Returns the autocorrelation of the losses in the last half of a run at a lag of `distance` updates, after subtracting the linear trend:
/// about 1 for a periodic loss, 0 for random batches, below 0 if high and low values alternate.
KEEL_BODY double correlation_of(std::span<curve_point const> points, std::size_t distance) {
  std::vector<double> values;
  for (std::size_t i = points.size() / 2; i < points.size(); ++i) {
    if (std::isfinite(points[i].value)) values.push_back(points[i].value);
  }
  auto const count = static_cast<double>(values.size());
  if (values.size() < 4 * distance + 16) return 0.0;
  double const centre = (count - 1.0) / 2.0;
  double mean = 0.0, slope = 0.0, square = 0.0;
  for (double const value : values) mean += value / count;
  for (std::size_t i = 0; i < values.size(); ++i) {
    slope += (static_cast<double>(i) - centre) * (values[i] - mean);
    square += (static_cast<double>(i) - centre) * (static_cast<double>(i) - centre);
  }
  for (std::size_t i = 0; i < values.size(); ++i) values[i] -= mean + slope / square * (static_cast<double>(i) - centre);
  double product = 0.0, all = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    all += values[i] * values[i];
    if (i >= distance) product += values[i] * values[i - distance];
  }
  return all > 0.0 ? product / all : 0.0;
}

/// Returns the share of lines whose batches occurred in an earlier line; -1 if the record has no checksums.
KEEL_BODY double share_of_repeats(run_history const& history) {
  if (history.batches.empty()) return -1.0;
  std::set<std::string> seen;
  for (seen_batch const& one : history.batches) seen.insert(one.checksum);
  return 1.0 - static_cast<double>(seen.size()) / static_cast<double>(history.batches.size());
}

/// The loss of a guess that knows only the frequency of each label.
struct known_guess {
  double loss = 0.0;  ///< in terms of the run's loss; 0 if unknown or not comparable
  bool are_classes = false;
  std::string words;
};
KEEL_BODY known_guess guess_of(run_history const& history, curve_shape const& loss) {
  known_guess found;
  run_event const* const event = first_event(history, "labels");
  if (event == nullptr) return found;
  double const guess = number_of(*event, "guess");
  double const in_a_batch = static_cast<double>(integer_in(event->details, "in_a_batch"));
  if (!(guess > 0.0)) return found;
  found.are_classes = text_of(*event, "are") == "classes";
  found.loss = guess;
  // A loss that is a sum over the labels is this many times their mean.
  if (found.are_classes && in_a_batch > 1.5 && loss.start > 0.7 * guess * in_a_batch && loss.start < 1.5 * guess * in_a_batch)
    found.loss *= in_a_batch;
  // A squared error starts at the variance of the targets or above; a lower start means another loss or a pretrained model.
  if (!found.are_classes && loss.start < 0.5 * guess) return {};
  found.words = formatted("a constant guess from the label frequencies has a loss of %.4g", found.loss);
  return found;
}

/// Counts changes of direction of the learning rate, each by a factor of at least `least`.
KEEL_BODY std::int64_t swings_of_rate(std::span<curve_point const> points, double least) {
  std::vector<double> logarithms;
  for (curve_point const& one : points) {
    if (one.value > 0.0) logarithms.push_back(std::log(one.value));
  }
  return turns_of(logarithms, std::log(least));
}

/// Returns the 95th percentile of the losses of the last half, divided by their median. Uses running medians of three.
KEEL_BODY double peaks_over_median(std::span<curve_point const> points) {
  std::vector<double> smooth;
  for (std::size_t i = points.size() / 2; i + 3 <= points.size(); ++i) {
    double const middle = median_of({points[i].value, points[i + 1].value, points[i + 2].value});
    if (std::isfinite(middle)) smooth.push_back(middle);
  }
  if (smooth.size() < 20) return 1.0;
  std::sort(smooth.begin(), smooth.end());
  double const middle = smooth[smooth.size() / 2];
  return middle > 0.0 ? smooth[smooth.size() * 95 / 100] / middle : 1.0;
}

KEEL_BODY void add_evaluations(run_history const& history, curve_shape const& loss, std::vector<triage_finding>& found) {
  auto const all = evaluations_of(history);
  auto const is_loss = [](std::string const& name) { return name.ends_with("loss") || name.ends_with("perplexity"); };
  bool const training_falls = loss.fallen() > 0.1;
  double rises_from_the_start = 0.0, rises_after_falling = 0.0;
  std::string forgotten, overfitted;
  bool another_falls = false;
  for (auto const& [name, curve] : all) {
    auto const& points = curve.kept;
    if (!is_loss(name) || points.size() < 4) continue;
    auto const lowest = std::min_element(points.begin(), points.end(),
                                         [](curve_point const& a, curve_point const& b) { return a.value < b.value; });
    double const first = points.front().value;
    if (!(lowest->value > 0.0)) continue;
    // A single evaluation may be low or high by chance.
    std::vector<double> newest, steps;
    std::size_t const few = std::clamp<std::size_t>(points.size() / 6, 1, 5);
    for (std::size_t i = points.size() - few; i < points.size(); ++i) newest.push_back(points[i].value);
    for (std::size_t i = 1; i < points.size(); ++i) steps.push_back(std::abs(points[i].value - points[i - 1].value));
    double const last = median_of(std::move(newest));
    double const noise = median_of(std::move(steps));
    if (points.size() >= 12 && last - lowest->value < 3.0 * noise) continue;
    double const rise = last / lowest->value;
    auto const behind = static_cast<std::size_t>(points.end() - lowest) - 1;
    std::string const words =
        formatted("%s had its minimum after update %lld with %.4g, and is %.4g after update %lld", name.c_str(),
                  static_cast<long long>(lowest->update), lowest->value, last, static_cast<long long>(points.back().update));
    another_falls = another_falls || last < 0.9 * first;
    if (rise < 1.05 || behind < 3) continue;
    // If the first evaluations are the best, the run forgets what the model could do before.
    if (lowest == points.begin() || first < 1.05 * lowest->value) {
      if (rise > rises_from_the_start) std::tie(rises_from_the_start, forgotten) = std::tie(rise, words);
    } else if (rise > rises_after_falling) {
      std::tie(rises_after_falling, overfitted) = std::tie(rise, words);
    }
  }
  std::string const training = formatted("the training loss went from %.4g to %.4g", loss.start, loss.last);
  // If every loss rises the run diverges, which is another family.
  if (!training_falls && !another_falls) return;
  // Data that was seen only once cannot be memorized.
  double const repeated = share_of_repeats(history);
  bool const is_new = repeated >= 0.0 && repeated < 0.1;
  bool const is_known = repeated > 0.5;
  std::vector<std::string> evidence{overfitted.empty() ? forgotten : overfitted, training};
  if (repeated >= 0.0) evidence.push_back(formatted("%.0f %% of the updates trained on repeated batches", 100.0 * repeated));
  double const rise = std::max(rises_from_the_start, rises_after_falling);
  if (rise == 0.0) return;
  double overfits = rises_after_falling > 0.0 ? 0.7 : 0.45, forgets = rises_from_the_start > 0.0 ? 0.7 : 0.3;
  if (is_known) overfits = 0.9, forgets = std::min(forgets, 0.6);
  if (is_new) overfits = 0.4, forgets = another_falls || rises_from_the_start > 0.0 ? 0.9 : 0.6;
  double const doubt = rise > 1.15 ? 1.0 : 0.8;
  found.push_back(
      {trouble::forgetting, doubt * forgets, {forgotten.empty() ? overfitted : forgotten, training, evidence.back()}});
  found.push_back({trouble::overfitting, doubt * overfits, std::move(evidence)});
}

KEEL_BODY std::vector<triage_finding> triage_of_learning(run_history const& history) {
  std::vector<triage_finding> found;
  auto const add = [&](trouble cause, double confidence, std::vector<std::string> evidence) {
    found.push_back({cause, confidence, std::move(evidence)});
  };
  auto const losses = points_of(history, "loss");
  curve_shape const loss = shape_of(losses);
  constexpr std::size_t least = 60;
  if (loss.count < least) return found;
  add_evaluations(history, loss, found);
  // Ratios of losses require positive values, such as cross-entropies and squared errors.
  if (!(loss.start > 0.0) || !(loss.last > 0.0)) return found;

  layer_summary const layers = layers_of(history);
  auto const norms = points_of(history, "gradient_norm");
  curve_shape const norm = shape_of(norms);
  std::string const course = formatted("the loss went from %.4g to %.4g in %zu updates, with a minimum of %.4g", loss.start,
                                       loss.last, loss.count, loss.lowest);
  std::string moved = layers.update_ratio > 0.0
                          ? formatted("an update changes a layer by %.2g of its norm; 1e-3 is typical", layers.update_ratio)
                          : std::string("the record does not show how large updates are; set options.layers_every");

  std::int64_t const swings = swings_of(losses, std::max(0.2 * loss.start, 0.35 * (loss.start - loss.lowest)));
  bool const swings_often =
      swings >= 4 && loss.lowest < 0.9 * loss.start && correlation_of(losses, 1) + correlation_of(losses, 2) > 0.6;
  known_guess const guess = guess_of(history, loss);
  // Uses the mean, because the guess is a mean: the median of squared errors is lower.
  double mean_of_last = 0.0;
  {
    std::size_t count = 0;
    for (std::size_t i = losses.size() - losses.size() / 3; i < losses.size(); ++i) {
      if (!std::isfinite(losses[i].value)) continue;
      mean_of_last += losses[i].value;
      ++count;
    }
    mean_of_last /= static_cast<double>(std::max<std::size_t>(count, 1));
  }
  // A loss below the guess shows that the inputs are used. A loss that starts there is of a pretrained model.
  bool const is_below_guess = guess.loss > 0.0 && mean_of_last < (guess.are_classes ? 0.75 : 0.7) * guess.loss;
  bool const was_trained = guess.loss > 0.0 && guess.are_classes && loss.start < 0.6 * guess.loss;
  // A loss that fell and is still far above the guess is of another kind.
  bool const is_near_guess = mean_of_last > 0.93 * guess.loss && mean_of_last < 1.25 * guess.loss;
  bool const is_no_better =
      guess.loss > 0.0 && !was_trained &&
      (is_near_guess || (mean_of_last > 0.93 * guess.loss && loss.last > 0.8 * loss.start && loss.start < 3.0 * guess.loss) ||
       (guess.are_classes && mean_of_last > 4.0 * guess.loss && norm.start > 1e3));
  bool const rose_back = loss.last > std::min(0.85 * loss.start, loss.start - loss.noise) && loss.last > 1.5 * loss.lowest;
  bool const knows_no_more = is_no_better && loss.lowest < 0.6 * guess.loss;
  bool const lost = knows_no_more || (loss.lowest < 0.75 * loss.start && rose_back);
  // A learning rate that goes up and down, and a loss that follows it.
  std::int64_t const of_rate = swings_of_rate(points_of(history, "lr"), 4.0);
  double const peaks = peaks_over_median(losses);
  double highest_late = 0.0;
  for (std::size_t i = losses.size() / 2; i < losses.size(); ++i) {
    if (std::isfinite(losses[i].value)) highest_late = std::max(highest_late, losses[i].value);
  }
  // With a constant schedule in the recipe, the program itself changes the rate.
  bool const is_own_rate =
      history.recipe.is_object() && history.recipe.value("schedule", nlohmann::json()).contains("constant");
  bool const leaps_once = is_own_rate && of_rate >= 6 && highest_late > 5.0 * loss.last && highest_late > loss.start;
  bool const follows_rate = (of_rate >= 4 && peaks > 2.0 && peaks * loss.last > 0.25 * loss.start) || leaps_once;
  // A calm phase, then alternating high and low losses within a few updates.
  bool const became_wild = lost && swings >= 8 && loss.lowest < 0.5 * loss.start && loss.noise > 2.0 * loss.lowest;
  bool const alternates = correlation_of(losses, 1) < -0.5 && loss.noise > 0.2 * loss.start;
  bool const oscillates = swings_often || alternates || follows_rate || became_wild;
  std::string const with_rate = formatted(
      "the learning rate changed direction %lld times by a factor of at least 4, and the loss follows it: its peaks are %.1f "
      "times its median",
      static_cast<long long>(of_rate), peaks);
  std::string const swung =
      follows_rate && !swings_often
          ? with_rate
          : std::to_string(swings) + " swings of the loss between high and low, smoothed over three updates";

  // Collapse: the model had learned, or had gradients, and now gives the same output for every input.
  std::vector<double> tail;
  for (std::size_t i = losses.size() - std::min<std::size_t>(losses.size(), 30); i < losses.size(); ++i)
    tail.push_back(losses[i].value);
  auto const [least_of_tail, most_of_tail] = std::minmax_element(tail.begin(), tail.end());
  bool const is_constant = *most_of_tail - *least_of_tail <= 1e-6 * std::abs(*most_of_tail) && loss.last > 0.1 * loss.start;
  bool const diverges = loss.last > 2.0 * loss.start;
  bool const blew_up = loss.highest > 10.0 * loss.start;
  bool const norm_died = norm.start > 0.0 && norm.last < 1e-3 * norm.start && loss.last > 0.5 * loss.start;
  bool const has_died = !layers.died.empty() && loss.last > 0.5 * loss.start;
  // The loss had been low and has risen again.
  bool const had_learned = loss.lowest < 0.6 * loss.start || knows_no_more;
  bool const is_dead = norm_died || has_died || is_constant;
  if (diverges && !(had_learned && is_dead)) {
    add(trouble::rate_too_high, 0.9, {course, moved, formatted("the loss peaked at %.4g", loss.highest)});
    add(trouble::collapse, lost ? 0.5 : 0.3, {course});
    if (oscillates) add(trouble::oscillation, follows_rate || became_wild ? 0.92 : 0.6, {course, swung});
    return found;
  }
  if ((is_constant && norm.start > 0.0) || norm_died || has_died || (lost && !oscillates)) {
    std::vector<std::string> evidence{course};
    if (is_constant) evidence.push_back("the last 30 losses are equal");
    if (norm_died) evidence.push_back(formatted("the gradient norm fell from %.3g to %.3g", norm.start, norm.last));
    if (has_died) evidence.push_back("layers whose gradient became 0: " + names_in(layers.died));
    // For a model that had learned, the collapse is the finding; for one that never learned, the learning rate is the cause.
    bool const thrown_off = !had_learned && has_died && loss.highest > 1.5 * loss.start;
    double const collapsed = is_dead ? 0.85 : 0.75;
    add(trouble::collapse, thrown_off ? 0.7 : std::max(collapsed, had_learned && blew_up ? 0.94 : 0.0), std::move(evidence));
    add(trouble::rate_too_high,
        thrown_off ? 0.85
        : blew_up  ? 0.6
                   : 0.4,
        {course, moved, formatted("the loss peaked at %.4g", loss.highest)});
    if (!blew_up || had_learned) return found;
  }
  if (oscillates) {
    add(trouble::oscillation, 0.8,
        {course, swings_often ? swung : std::string("the loss alternates between high and low with every update")});
    add(trouble::rate_too_high, 0.55, {course, swung, moved});
  }

  double const frozen = [&] {
    run_event const* const begins = first_event(history, "begins");
    if (begins == nullptr) return 0.0;
    auto const all = static_cast<double>(integer_in(begins->details, "parameters"));
    return all > 0.0 ? static_cast<double>(integer_in(begins->details, "frozen")) / all : 0.0;
  }();
  bool const crawls = !oscillates && layers.update_ratio > 0.0 && layers.update_ratio < 5e-5;
  bool const is_flat = std::abs(loss.settled - loss.last) < std::max(0.02 * loss.start, 0.5 * loss.noise);
  bool const has_no_gradient = !layers.without_gradient.empty();
  auto const ignored = values_of(points_of(history, "ignored_labels"));
  auto const padded = values_of(points_of(history, "padding"));
  double const of_ignored = ignored.empty() ? 0.0 : median_of(ignored);
  double const of_padding = padded.empty() ? 0.0 : median_of(padded);
  // A cross-entropy at the logarithm of the number of classes means that the model knows nothing but that number.
  double const classes = std::round(std::exp(std::min(loss.settled, 20.0)));
  bool const is_at_chance = classes >= 2.0 && classes <= 2e5 &&
                            std::abs(loss.settled - std::log(classes)) < 0.01 * loss.settled &&
                            std::abs(loss.last - std::log(classes)) < 0.01 * loss.last;
  bool const begins_far_above = is_no_better && loss.start > 8.0 * guess.loss;
  bool const is_suspect = crawls || of_ignored > 0.8;
  // An adapter trains few parameters and may have little left to learn.
  double const little = is_suspect ? 0.3 : is_at_chance ? 0.15 : frozen > 0.3 ? 0.12 : 0.08;
  bool const gained_nothing = is_flat && loss.start - loss.last < loss.noise;
  bool const is_stuck =
      is_no_better ||
      (!is_below_guess && !was_trained &&
       (loss.fallen() < 0.05 || (is_flat && loss.fallen() < little) || gained_nothing || (is_suspect && loss.fallen() < 0.2)));
  double const spread = layers.smallest > 0.0 ? layers.largest / layers.smallest : 1.0;
  // A falling loss does not excuse layers that do not train at all although nothing is frozen.
  if (!is_stuck && (!has_no_gradient || frozen > 0.0) && spread < 3e4) return found;

  if (guess.loss > 0.0 && is_stuck) moved += "; " + guess.words;
  bool const leaps = layers.update_ratio > 0.02;
  bool const has_usual_updates = layers.update_ratio > 0.0 && !crawls && !leaps;

  if (is_stuck)
    add(trouble::rate_too_low,
        crawls                       ? 0.9
        : layers.update_ratio == 0.0 ? 0.4
        : layers.update_ratio < 3e-4 ? 0.5
                                     : 0.15,
        {course, moved});
  if (!oscillates) {
    double const high = blew_up ? 0.92 : is_stuck ? (leaps ? 0.85 : layers.update_ratio == 0.0 ? 0.3 : 0.15) : 0.1;
    add(trouble::rate_too_high, high, {course, moved, formatted("the loss peaked at %.4g", loss.highest)});
    if (blew_up && has_no_gradient)
      add(trouble::collapse, 0.7, {course, "layers without a gradient: " + names_in(layers.without_gradient)});
  }

  std::vector<std::string> mask{course};
  double wrong_mask = !is_stuck ? 0.1 : has_usual_updates ? 0.35 : 0.2;
  if (of_ignored > 0.8 && is_stuck) {
    wrong_mask = 0.9;
    mask.push_back(formatted("%.0f %% of the labels are ignored", 100.0 * of_ignored));
  }
  // Only a few layers, such as an embedding that attention does not reach.
  bool const only_a_few = has_no_gradient && 2 * layers.without_gradient.size() < layers.layers;
  if (only_a_few && !blew_up) {
    wrong_mask = std::max(wrong_mask, 0.6);
    mask.push_back("layers without a gradient in any measurement: " + names_in(layers.without_gradient));
  }
  if (of_padding > 0.3 && of_ignored == 0.0) {
    wrong_mask = std::max(wrong_mask, 0.6);
    mask.push_back(formatted("%.0f %% of the ids are padding, and no label is ignored", 100.0 * of_padding));
  }

  std::vector<std::string> untrained{course};
  double forgotten = 0.1;
  if (frozen > 0.3 && is_stuck) {
    forgotten = frozen > 0.9 ? 0.9 : 0.8;
    untrained.push_back(formatted("%.0f %% of the parameters are frozen", 100.0 * frozen));
  }
  if (has_no_gradient && layers.of_zeros.empty()) {
    forgotten = std::max(forgotten, only_a_few ? 0.7 : 0.85);
    untrained.push_back("layers without a gradient in any measurement: " + names_in(layers.without_gradient));
  }
  std::vector<double> const rates = [&] {
    std::vector<double> all;
    run_event const* const begins = first_event(history, "begins");
    if (begins == nullptr || !begins->details.contains("rates") || !begins->details["rates"].is_array()) return all;
    for (auto const& one : begins->details["rates"]) all.push_back(number_in(one).value_or(1.0));
    return all;
  }();
  auto const at_rest = std::count(rates.begin(), rates.end(), 0.0);
  if (is_stuck &&
      ((at_rest > 0 && static_cast<std::size_t>(at_rest) < rates.size()) || 2 * layers.unmoved.size() > layers.layers)) {
    forgotten = std::max(forgotten, 0.88);
    if (at_rest > 0)
      untrained.push_back(std::to_string(at_rest) + " of " + std::to_string(rates.size()) +
                          " parameter groups have a learning rate of 0");
    if (!layers.unmoved.empty())
      untrained.push_back("layers that have a gradient but do not change: " + names_in(layers.unmoved));
  }
  std::vector<std::string> begun{course};
  double init = 0.1;
  if (has_no_gradient && !only_a_few && frozen == 0.0 && layers.of_zeros.empty()) {
    init = 0.6;
    begun.push_back("layers that no gradient reaches from the first measurement on: " + names_in(layers.without_gradient));
  }
  if (!layers.of_zeros.empty() && !layers.without_gradient.empty()) {
    init = 0.9;
    begun.push_back("layers whose parameters are all 0: " + names_in(layers.of_zeros));
  }
  if (layers.layers > 1 && spread > 1e4) {
    init = std::max(init, is_stuck ? 0.85 : 0.6);
    begun.push_back(formatted("at the first measurement the gradient norm of %s was %.2g and that of %s %.2g",
                              layers.smallest_layer.c_str(), layers.smallest, layers.largest_layer.c_str(), layers.largest));
  }
  if (begins_far_above) {
    init = std::max(init, 0.85);
    begun.push_back(guess.words);
  }
  if (norm.start > 0.0 && (norm.start < 1e-4 || norm.start > 1e3)) {
    init = std::max(init, 0.7);
    begun.push_back(formatted("the gradient norm was %.2g at the start", norm.start));
  }
  if (layers.activation > 0.0 && (layers.activation < 1e-4 || layers.activation > 1e3)) {
    init = std::max(init, 0.75);
    begun.push_back(formatted("the output of %s has a standard deviation of %.2g", layers.unit.c_str(), layers.activation));
  }
  add(trouble::wrong_mask, wrong_mask, std::move(mask));
  add(trouble::untrained_parameters, forgotten, std::move(untrained));
  add(trouble::bad_initialization, init, std::move(begun));
  bool const is_explained = std::max({wrong_mask, forgotten, init}) >= 0.6 || crawls || leaps || blew_up;
  add(trouble::wrong_labels,
      !is_stuck           ? 0.1
      : is_explained      ? 0.3
      : has_usual_updates ? 0.75
                          : 0.55,
      {course, moved, formatted("the gradient norm is %.3g", norm.last)});
  return found;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
