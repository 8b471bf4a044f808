// Definitions for evaluator.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <keel/step/gradients.hpp>
#include <keel/step/update_decision.hpp>
#include <keel/trainer/checkpoint_collectives.hpp>
#include <keel/trainer/evaluator.hpp>
#include <optional>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY std::string name_of_value(std::string const& evaluation, std::string const& value) {
  std::string const name = value.empty() ? "loss" : value;
  return evaluation.empty() ? name : evaluation + "/" + name;
}

KEEL_BODY void evaluator::replace_or_add(std::string name, measurement measure) {
  auto const known = std::find_if(all_.begin(), all_.end(), [&](auto const& one) { return one.name == name; });
  if (known != all_.end()) {
    known->measure = std::move(measure);
  } else {
    all_.push_back({std::move(name), std::move(measure)});
  }
}

KEEL_BODY evaluation_result evaluator::evaluate(std::string const& name, measurement const& measure, std::int64_t most) {
  context_.models.settle();
  auto const began = context_.time.now();
  phase_clock::scope const timed(context_.phases, run_phase::evaluating);
  // At a boundary the gradients are not needed: the next update starts without them.
  auto const make_room = [this] {
    if (context_.models.at_boundary()) clear_gradients(context_.models.parameters().tensors);
  };
  auto const before_batch = [this] {
    context_.models.begin_evaluation_batch();
    if (before_batch_hook_) before_batch_hook_();
  };
  is_evaluating_or_failed_ = true;
  evaluation_result result = [&] {
    // Inside an update, changes that the program makes between two micro-batches must persist.
    program_state_guard const unchanged(context_.models.at_boundary() ? program_ : nullptr);
    try {
      return measure(most, {context_.models.pieces(), may_cut(), context_.models.relief().attention, make_room, before_batch});
    } catch (...) {
      // Rethrown once this rank has taken part in the collectives that the others are in.
      context_.models.cancel_evaluation();
      throw;
    }
  }();
  context_.models.end_evaluation();
  if (shard::is_distributed(context_.recipe.shard)) average_over_ranks(context_.world, name, result);
  is_evaluating_or_failed_ = false;
  double const taken = std::chrono::duration<double, std::milli>(context_.time.now() - began).count();
  context_.log.evaluated(context_.models.updates(), name, result, is_recipe_evaluation_ ? std::optional(taken) : std::nullopt);
  if (!is_recipe_evaluation_) context_.hooks(event::evaluated{context_.models.updates(), name, result});
  return result;
}

KEEL_BODY double evaluator::evaluate_all() {
  auto const began = context_.time.now();
  std::vector<std::pair<std::string, double>> values;
  std::vector<evaluation_result> results;
  {
    require_averages();
    auto const averages = settings().averaged ? context_.models.averages() : std::vector<moving_average*>();
    std::vector<moving_average::averaged_scope> in_place;
    in_place.reserve(averages.size());
    // Swap out in reverse order, because parts linked by keel::after share parameters.
    auto const swaps_out = c10::make_scope_exit([&] {
      while (!in_place.empty()) in_place.pop_back();
    });
    for (moving_average* const one : averages) in_place.push_back(one->swap_in());
    scoped_flag const of_recipe(is_recipe_evaluation_);
    for (auto const& one : all_) {
      results.push_back(evaluate(one.name, one.measure, settings().batches));
      for (auto const& [name, value] : results.back().values) values.emplace_back(name_of_value(one.name, name), value);
    }
  }
  // After the averages were swapped out, so that hooks see the trained parameters.
  for (std::size_t i = 0; i < results.size(); ++i)
    context_.hooks(event::evaluated{context_.models.updates(), all_[i].name, results[i]});
  slowest_ = std::max(slowest_, std::chrono::duration<double>(context_.time.now() - began).count());
  return monitored_value(values);
}

KEEL_BODY void evaluator::for_each_evaluation(
    std::function<void(std::string const&, std::function<void(std::int64_t)> const&)> const& use) const {
  for (named_evaluation const& one : all_) {
    use(one.name, [&](std::int64_t most) { one.measure(most, {1, may_cut(), context_.models.relief().attention, [] {}, {}}); });
  }
}

KEEL_BODY void evaluator::require_averages() const {
  if (settings().averaged && context_.models.averages().empty())
    throw error("E12",
                "the run evaluates moving averages, but none of its parts keeps one. Add keel::ema<0.999> to a part, or remove "
                "keel::evaluation::averaged.");
}

KEEL_BODY void evaluator::require_evaluations() const {
  if (settings().kind != evaluation::kind::none && !context_.models.all().empty()) require_averages();
  if (settings().kind == evaluation::kind::none || !all_.empty()) return;
  throw error("E12", "the recipe evaluates every " + std::to_string(settings().interval) +
                         (settings().kind == evaluation::kind::every ? " updates" : " epochs") +
                         ", but the run has no evaluation data. Call evaluate_on(batches, loss_of) before the run.");
}

KEEL_BODY bool evaluator::is_due(std::int64_t updates) const {
  return settings().kind == evaluation::kind::every && updates % settings().interval == 0;
}

KEEL_BODY bool evaluator::is_due_by_epochs() const {
  if (settings().kind != evaluation::kind::every_epochs) return false;
  std::int64_t const interval = settings().interval;
  return context_.progress.cursor.epoch / interval > context_.progress.record.evaluated_epochs / interval;
}

KEEL_BODY double evaluator::monitored_value(std::vector<std::pair<std::string, double>> const& values) const {
  if (settings().monitor.empty()) return values.front().second;
  std::string const wanted = settings().monitor.letters;
  std::string there;
  for (auto const& [name, value] : values) {
    if (name == wanted || name.ends_with("/" + wanted)) return value;
    there += (there.empty() ? "" : ", ") + name;
  }
  throw error("E12", "the recipe monitors " + wanted + ", but its evaluations report only " + there +
                         ". Return keel::batch_metrics with that name, or monitor one of these.");
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
