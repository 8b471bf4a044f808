// Definitions for preflight_training.hpp.
#pragma once

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <keel/diagnose/preflight_passes.hpp>
#include <keel/diagnose/preflight_training.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/lora/lora.hpp>
#include <keel/metrics/number_format.hpp>
#include <keel/policy/schedule.hpp>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY double median_of_last(std::vector<double> const& values, std::size_t count) {
  std::vector<double> last(values.end() - static_cast<std::ptrdiff_t>(std::min(count, values.size())), values.end());
  if (last.empty()) return 0.0;
  std::nth_element(last.begin(), last.begin() + static_cast<std::ptrdiff_t>(last.size() / 2), last.end());
  return last[last.size() / 2];
}

/// Returns the losses of updates on one batch; fewer if an update was skipped, the loss rose far above its start, or the time is over.
KEEL_BODY std::vector<double> losses_on(preflight_program& program, preflight_table const& table, std::size_t batch,
                                        double factor, std::int64_t updates) {
  std::vector<double> losses;
  program.with_step([&](tried_step& step) {
    step.use_rate(factor);
    std::vector<tried_batch> const again{{batch}};
    for (std::int64_t i = 0; i < updates && !table.is_over(); ++i) {
      tried_update const update = step.update(again);
      if (update.is_overflow) continue;
      if (!update.is_applied || !std::isfinite(update.loss)) return;
      losses.push_back(update.loss);
      if (update.loss > losses.front() + 10.0 * std::abs(losses.front())) return;
    }
  });
  return losses;
}

KEEL_BODY void check_overfit(preflight_program& program, preflight_training& found, preflight_table& table) {
  constexpr char const* check = "overfit one batch";
  std::string best;
  double lowest_share = 2.0;
  // This check is about the wiring, so it tries several rates.
  for (double const factor : {1.0, 10.0, 0.1, 100.0, 1000.0}) {
    table.show_progress(check);
    std::vector<double> const losses = losses_on(program, table, 0, factor, found.updates);
    if (losses.size() < 2) continue;
    double const first = losses.front();
    double const last = median_of_last(losses, 5);
    double const share = first > 0.0 ? last / first : last < first - 0.5 * std::abs(first) ? 0.0 : 1.0;
    std::string const words =
        formatted("the loss of one batch went from %.4g to %.4g in %zu updates%s", first, last, losses.size(),
                  factor == 1.0 ? "" : formatted(" at %g times the learning rate", factor).c_str());
    if (share < lowest_share) {
      lowest_share = share;
      best = words;
    }
    constexpr double enough = 0.5;
    if (share < enough) {
      found.factor_of_rate = factor;
      table.passed(check, words);
      return;
    }
    if (found.is_slow || table.is_over()) break;
  }
  // So few updates can prove that the model learns, but not that it does not.
  if (found.is_slow || table.is_over() || found.updates < found.wanted) return table.not_enough_time(check, best);
  table.failed(check,
               best.empty() ? "no update on one batch was applied at any learning rate"
                            : best + ", and other learning rates do not help",
               "a batch that cannot be memorized points to a bug, not to tuning: check masks, targets, detach(), evaluation "
               "mode, the output's range, and label smoothing or dropout that is too strong");
}

KEEL_BODY void check_rate(preflight_program& program, preflight_training const& found, preflight_table& table) {
  constexpr char const* check = "learning rate";
  double const own = program.highest_rate();
  if (!(own > 0.0)) {
    table.failed(check, "the learning rate is 0", "set the learning rate of the first parameter group above 0");
    return;
  }
  if (program.updates_so_far() > 0) {
    table.not_applicable(check, "the run has already started");
    return;
  }
  if (found.is_slow) return table.not_enough_time(check, "updates take too long for a range test");
  if (found.factor_of_rate && *found.factor_of_rate >= 100.0) {
    table.failed(check,
                 formatted("%.3g; one batch is memorized at %g times that value, but at no lower learning rate", own,
                           *found.factor_of_rate),
                 "use a higher learning rate, or normalize inputs and targets to mean 0 and standard deviation 1");
    return;
  }
  lr_range_options options;
  options.lowest = std::min(1e-6, own * 1e-2);
  options.highest = std::max(1.0, own * 10.0);
  options.updates = std::max<std::int64_t>(40, found.updates);
  lr_range_result const range = program.range(options);
  if (range.points.size() < 10 || !(range.steepest > 0.0)) {
    table.not_applicable(check, "the loss did not fall at any learning rate of the range test");
    return;
  }
  double const last = range.points.back().learning_rate;
  double lowest = range.points.front().smoothed_loss, start = lowest;
  for (auto const& one : range.points) lowest = std::min(lowest, one.smoothed_loss);
  std::string const words =
      formatted("%.3g; in a range test the loss fell fastest at %.3g, was lowest at %.3g%s", own, range.steepest, range.lowest,
                range.diverged ? formatted(", and diverged at %.3g", last).c_str() : "");
  bool const fell = start - lowest > 0.05 * std::abs(start);
  if (range.diverged && own > last) {
    table.failed(check, words,
                 formatted("use at most a tenth of the learning rate with the lowest loss: %.2g", range.lowest / 10.0));
  } else if (fell && own < range.steepest * 1e-3) {
    table.failed(check, words,
                 formatted("use about a tenth of the learning rate with the lowest loss: %.2g", range.lowest / 10.0));
  } else {
    table.passed(check, words);
  }
}

KEEL_BODY at::Tensor another_order(std::int64_t rows, std::uint64_t seed) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 engine(seed);
  // std::shuffle gives a different order in each standard library.
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[static_cast<std::size_t>(engine() % i)]);
  return at::tensor(order, at::kLong);
}

/// Returns the tensors with the rows of the labels permuted; empty for a single row.
KEEL_BODY std::vector<at::Tensor> with_labels_of_other_rows(std::vector<at::Tensor> const& tensors, std::uint64_t seed) {
  if (tensors.size() < 2 || tensors.back().dim() == 0 || tensors.back().size(0) < 2) return {};
  std::vector<at::Tensor> instead = tensors;
  at::Tensor const order = another_order(tensors.back().size(0), seed).to(tensors.back().device());
  instead.back() = tensors.back().index_select(0, order);
  return instead;
}

KEEL_BODY void check_labels_belong(preflight_program& program, preflight_training const& found, preflight_table& table) {
  constexpr char const* check = "labels belong to inputs";
  std::size_t const all = program.batches();
  std::size_t const held_out = std::max<std::size_t>(4, all / 4);
  if (!found.has_labels) {
    table.not_applicable(check, "no tensor of the batch contains only labels");
    return;
  }
  if (found.is_slow) return table.not_enough_time(check, "updates take too long for this check");
  if (!found.factor_of_rate || all < 24) {
    table.not_applicable(check, found.factor_of_rate ? "at least 24 batches are needed" : "one batch could not be memorized");
    return;
  }
  std::size_t const trains_on = all - held_out;
  // One permutation is not enough: the losses of two models that learn nothing useful differ by more than the noise between batches.
  constexpr std::size_t orders = 3;
  std::array<std::vector<std::vector<at::Tensor>>, orders> other_labels;
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < trains_on; ++i) {
    for (std::size_t order = 0; order < orders; ++order) {
      other_labels[order].push_back(with_labels_of_other_rows(program.tensors(i), order * all + i + 1));
      if (other_labels[order].back().empty()) {
        table.not_applicable(check, "the batch is one tensor, or its labels have no rows");
        return;
      }
    }
    rows += program.rows(i);
  }
  for (std::size_t i = trains_on; i < all; ++i) rows += program.rows(i);
  // At most three passes over the batches, before the model memorizes them.
  std::int64_t const updates =
      std::min<std::int64_t>(std::max<std::int64_t>(found.updates, 60), static_cast<std::int64_t>(3 * trains_on));
  // Trains with the program's labels, or with those of a permutation.
  auto const losses_after = [&](std::int64_t count, double factor, std::optional<std::size_t> order = {}) {
    std::vector<double> losses;
    program.with_step([&](tried_step& step) {
      step.use_rate(factor);
      table.show_progress(check);
      for (std::int64_t i = 0; i < count && !table.is_over(); ++i) {
        std::size_t const at = static_cast<std::size_t>(i) % trains_on;
        std::vector<tried_batch> const batches{{at, order ? other_labels[*order][at] : std::vector<at::Tensor>()}};
        tried_update const update = step.update(batches);
        if (!update.is_applied && !update.is_overflow) return;
      }
      mode_scope const modes(program.all_models());
      program.all_models().eval();
      at::NoGradGuard const no_grad;
      for (std::size_t i = trains_on; i < all; ++i) losses.push_back(host_value(program.loss({i}).mean));
    });
    return losses;
  };
  double at_first = 0.0;
  for (double const one : losses_after(0, 1.0)) at_first += one / static_cast<double>(held_out);
  std::string words;
  for (double const factor : {1.0, *found.factor_of_rate, 5.0}) {
    if (factor == 1.0 && *found.factor_of_rate > 5.0) continue;
    std::vector<double> const own = losses_after(updates, factor);
    if (own.empty()) continue;
    auto const count = static_cast<double>(own.size());
    double of_own = 0.0;
    for (double const one : own) of_own += one / count;
    // The labels belong to the inputs if the loss is below its start and, for each permutation, significantly below that with permuted
    // labels.
    bool belongs = of_own < at_first;
    std::optional<double> closest;
    for (std::size_t order = 0; order < orders && (order == 0 || belongs); ++order) {
      std::vector<double> const other = losses_after(updates, factor, order);
      if (own.size() != other.size()) {
        belongs = false;
        break;
      }
      double mean = 0.0, square = 0.0;
      for (std::size_t i = 0; i < own.size(); ++i) mean += (other[i] - own[i]) / count;
      for (std::size_t i = 0; i < own.size(); ++i) square += std::pow(other[i] - own[i] - mean, 2);
      double const error = std::sqrt(square / (count - 1.0) / count);
      if (table.is_over()) return table.not_enough_time(check, "");
      belongs = belongs && mean > 3.0 * error;
      closest = std::min(closest.value_or(mean), mean);
    }
    if (!closest) continue;
    words = formatted("after %lld updates the loss on %zu other batches is %.4g; with labels of other rows it would be %.4g",
                      static_cast<long long>(updates), own.size(), of_own, of_own + *closest);
    if (belongs) {
      table.passed(check, words);
      return;
    }
  }
  if (words.empty()) {
    table.not_applicable(check, "updates on several batches were not applied");
  } else if (rows < 256) {
    table.not_applicable(check, words + "; the rows are too few to decide");
  } else {
    table.failed(check, words + ": what the model learns does not generalize",
                 "compare some rows of inputs and labels by eye: look for a different order after shuffling, a shift by one "
                 "row, or a join on the wrong key; if the signal is weak, give the preflight more batches");
  }
}

KEEL_BODY void advise(preflight_program& program, preflight_table& table) {
  config const& recipe = program.recipe();
  std::int64_t const length = program.updates_of_run();
  std::int64_t const warmup = schedule::warmup_updates(recipe.schedule, length);
  if (length >= 100 && schedule::changes_the_rate(recipe.schedule)) {
    double const share = static_cast<double>(warmup) / static_cast<double>(length);
    if (share < 0.02 || share > 0.2)
      table.advise(formatted("the warm-up is %.1f %% of the run; 5 to 10 %% is typical", 100.0 * share));
  }
  auto const& adapters = lora_layers(program.model());
  bool const is_adapted = !adapters.empty();
  double const rate = program.highest_rate();
  if (is_adapted && (rate < 3e-5 || rate > 1e-3))
    table.advise(formatted("the learning rate is %.2g; with LoRA, 1e-4 to 3e-4 is typical", rate));
  if (!is_adapted && program.begins_with_weights() && (rate < 5e-6 || rate > 1e-4))
    table.advise(formatted("the learning rate is %.2g; 1e-5 to 5e-5 is typical for full fine-tuning", rate));
  for (auto const& layer : adapters) {
    std::int64_t const rank = layer->options.rank();
    if (rank < 8 || rank > 32) {
      table.advise(formatted("an adapter has rank %lld; 8 to 32 is typical", static_cast<long long>(rank)));
      break;
    }
  }
  for (auto const& layer : adapters) {
    if (layer->options.dropout() > 0.2) {
      table.advise(formatted("an adapter has a dropout of %.2g; 0.05 is typical", layer->options.dropout()));
      break;
    }
  }
  for (auto const& group : program.optimizer().param_groups()) {
    if (!group.has_options()) continue;
    auto const* const options = dynamic_cast<torch::optim::AdamWOptions const*>(&group.options());
    if (options != nullptr && is_adapted && options->weight_decay() > 0.1) {
      table.advise(
          formatted("the weight decay is %.2g; with LoRA, more than 0.1 erases what is learned", options->weight_decay()));
      break;
    }
  }
  if (program.updates_so_far() == 0 && !is_adapted && recipe.schedule.kind == schedule::kind::constant && length >= 1000)
    table.advise(
        "the learning rate is constant; a decaying schedule, such as keel::schedule::cosine, reaches a lower loss in most "
        "runs");
  bool const clips = recipe.clip.kind != clip::kind::none;
  if (!clips)
    table.advise("gradients are not clipped; keel::clip::global_norm<1.0> costs no more than the check of the gradients");
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
