// The evaluations of a run: what they look at, when they are due, what they are judged by.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <keel/core/error.hpp>
#include <keel/data/batch_source.hpp>
#include <keel/evaluation/evaluate.hpp>
#include <keel/recipe/config_of.hpp>
#include <keel/rule/not_implemented.hpp>
#include <keel/rule/reject_call.hpp>
#include <keel/step/gradients.hpp>
#include <keel/step/program_state.hpp>
#include <keel/step/update_decision.hpp>
#include <keel/trainer/hooks.hpp>
#include <keel/trainer/progress.hpp>
#include <keel/trainer/run_log.hpp>
#include <keel/trainer/run_of_ranks.hpp>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// A trainer's part.
template <class Recipe, class Step>
class evaluator {
  static constexpr config configured = kinds_of(config_of<Recipe>);

 public:
  /// All of them outlive this.
  evaluator(Step& step, run_progress const& progress, run_log& log, hooks& hooks, time_source const& time)
      : step_(step), progress_(progress), log_(log), hooks_(hooks), time_(time) {}
  evaluator(evaluator const&) = delete;
  evaluator& operator=(evaluator const&) = delete;

  /// A second one of the same name replaces the first. Rejects batches that cannot be read again (U32), counted (U14) or come to an
  /// end (E28).
  template <class Batches, class LossOf>
  void add(std::string name, Batches batches, LossOf loss_of) {
    using source = std::unwrap_reference_t<Batches>;
    if constexpr (!is_repeatable<source>) {
      reject_call<rule::U32, Batches>();
    } else if constexpr (!countable_batch<batch_of<source>>) {
      reject_call<rule::U14, batch_of<source>>();
    } else if constexpr (source_facts<source>().endless && config_of<Recipe>.evaluation.batches == 0) {
      reject_call<rule::E28, Batches>();
    } else {
      // A recipe may leave the number to the program.
      if (source_facts<source>().endless && settings().batches == 0) throw broken_rule<recipe_error, rule::E28>();
      add_sound(std::move(name), std::move(batches), std::move(loss_of));
    }
  }
  /// State of the program that an evaluation leaves as it was; it outlives this.
  void restore(program_state& state) { program_ = &state; }
  /// On the first `most` batches; 0: on all.
  template <class Batches, class LossOf>
  evaluation_result evaluate(std::string const& name, std::int64_t most, Batches& batches, LossOf& loss_of) {
    step_.settle();
    auto const began = time_.now();
    [[maybe_unused]] auto const timed = evaluating();
    // At a boundary the gradients are of no more use: the next update begins without them.
    auto const make_room = [this] {
      if (step_.at_boundary()) clear_gradients(step_.parameters().tensors);
    };
    evaluation_memory const memory{step_.pieces(), may_cut, step_.relief().attention, make_room, each_batch_};
    is_inside_ = true;
    evaluation_result result = [&] {
      // Inside an update what the program changes between two micro-batches is its own.
      unchanged_program_state const unchanged(step_.at_boundary() ? program_ : nullptr);
      return keel::evaluate(step_.model(), step_.parameters().device, precision_kind(), batches, loss_of, memory, most);
    }();
    if constexpr (shard::is_of_ranks(configured.shard)) combine_over(step_.ranks().world(), name, result);
    is_inside_ = false;
    double const taken = std::chrono::duration<double, std::milli>(time_.now() - began).count();
    log_.evaluated(step_.updates(), name, result, of_recipe_ ? std::optional(taken) : std::nullopt);
    if (!of_recipe_) hooks_(event::evaluated{step_.updates(), name, result});
    return result;
  }

  /// On all batches: an evaluation_result where `loss_of` returns batch_metrics, else the mean loss.
  template <class Batches, class LossOf>
  auto evaluate_once(Batches& batches, LossOf& loss_of) {
    evaluation_result const found = evaluate("", 0, batches, loss_of);
    using batch = batch_of<std::remove_reference_t<Batches>>;
    if constexpr (std::same_as<std::remove_cvref_t<std::invoke_result_t<LossOf&, batch const&>>, batch_metrics>) {
      return found;
    } else {
      return found.values.front().second;
    }
  }

  /// All evaluations of the recipe. Returns the value that is judged. Throws error (E12) if no value has the monitored name.
  double evaluate_all() {
    auto const began = time_.now();
    std::vector<std::pair<std::string, double>> values;
    std::vector<evaluation_result> results;
    {
      [[maybe_unused]] auto const average = swap_in_average();
      raised const of_recipe(of_recipe_);
      for (auto& one : all_) {
        results.push_back(one.run());
        for (auto const& [name, value] : results.back().values) values.emplace_back(joined(one.name, name), value);
      }
    }
    // With the parameters in their place.
    for (std::size_t i = 0; i < results.size(); ++i) hooks_(event::evaluated{step_.updates(), all_[i].name, results[i]});
    slowest_ = std::max(slowest_, std::chrono::duration<double>(time_.now() - began).count());
    return judged(values);
  }

  /// Calls `use(name, run)` for each that was added; `run(most)` evaluates so many batches, and nothing is written down.
  template <class Use>
  void rehearse_each(Use const& use) const {
    for (named_evaluation const& one : all_) use(one.name, one.rehearse);
  }

  /// Throws error (E12) for a recipe that evaluates where nothing was added.
  void require_any() const {
    if (configured.evaluation.kind == evaluation::kind::none || !all_.empty()) return;
    throw error("E12", "the recipe evaluates every " + std::to_string(settings().interval) +
                           (configured.evaluation.kind == evaluation::kind::every ? " updates" : " epochs") +
                           ", and has nothing to evaluate on. Call evaluate_on(batches, loss_of) before the run.");
  }
  /// After so many updates.
  bool is_due([[maybe_unused]] std::int64_t updates) const {
    if constexpr (configured.evaluation.kind == evaluation::kind::every) {
      return updates % settings().interval == 0;
    } else {
      return false;
    }
  }
  /// At an update boundary, once an epoch.
  bool is_due_by_epochs() const {
    if constexpr (configured.evaluation.kind == evaluation::kind::every_epochs) {
      std::int64_t const interval = settings().interval;
      return progress_.cursor.epoch / interval > progress_.record.evaluated_epochs / interval;
    } else {
      return false;
    }
  }
  /// Calls it before each batch of an evaluation.
  void before_each_batch(std::function<void()> call) { each_batch_ = std::move(call); }
  /// An evaluation is under way, or ended with an exception.
  bool is_inside() const { return is_inside_; }
  /// Seconds that the slowest evaluation of all took.
  double slowest() const { return slowest_; }

 private:
  template <class Batches, class LossOf>
  void add_sound(std::string name, Batches batches, LossOf loss_of) {
    struct kept {
      Batches batches;
      LossOf loss_of;
    };
    auto const on = std::make_shared<kept>(kept{std::move(batches), std::move(loss_of)});
    auto run = [this, name, on] {
      return evaluate(name, settings().batches, static_cast<std::unwrap_reference_t<Batches>&>(on->batches),
                      static_cast<std::unwrap_reference_t<LossOf>&>(on->loss_of));
    };
    auto rehearse = [this, on](std::int64_t most) {
      evaluation_memory const memory{1, may_cut, step_.relief().attention, [] {}};
      keel::evaluate(step_.model(), step_.parameters().device, precision_kind(),
                     static_cast<std::unwrap_reference_t<Batches>&>(on->batches),
                     static_cast<std::unwrap_reference_t<LossOf>&>(on->loss_of), memory, most);
    };
    auto const known = std::find_if(all_.begin(), all_.end(), [&](auto const& one) { return one.name == name; });
    if (known != all_.end()) {
      known->run = std::move(run);
      known->rehearse = std::move(rehearse);
    } else {
      all_.push_back({std::move(name), std::move(run), std::move(rehearse)});
    }
  }

  precision::kind precision_kind() const { return step_.environment().autocast(configured.precision.kind); }
  evaluation::settings const& settings() const { return step_.recipe_value().evaluation; }

  static constexpr bool may_cut = oom::has_rung(configured.oom, oom::rung_kind::halve_micro_batch);

  struct named_evaluation {
    std::string name;
    std::function<evaluation_result()> run;
    std::function<void(std::int64_t)> rehearse;
  };

  auto evaluating() { return phase_clock::scope(step_.phases(), run_phase::evaluating); }
  auto swap_in_average() {
    if constexpr (configured.evaluation.averaged && Step::averages) {
      return step_.average().swap_in();
    } else {
      return nullptr;
    }
  }
  static double judged(std::vector<std::pair<std::string, double>> const& values) {
    if constexpr (configured.evaluation.monitor.empty()) {
      return values.front().second;
    } else {
      std::string const wanted = configured.evaluation.monitor.letters;
      std::string there;
      for (auto const& [name, value] : values) {
        if (name == wanted || name.ends_with("/" + wanted)) return value;
        there += (there.empty() ? "" : ", ") + name;
      }
      throw error("E12", "the recipe monitors " + wanted + ", and its evaluations give " + there +
                             ". Return keel::batch_metrics with that name, or monitor one of these.");
    }
  }
  static std::string joined(std::string const& evaluation, std::string const& value) {
    std::string const name = value.empty() ? "loss" : value;
    return evaluation.empty() ? name : evaluation + "/" + name;
  }

  Step& step_;
  run_progress const& progress_;
  run_log& log_;
  hooks& hooks_;
  time_source const& time_;
  std::vector<named_evaluation> all_;
  double slowest_ = 0.0;
  bool of_recipe_ = false;
  std::function<void()> each_batch_;
  bool is_inside_ = false;
  program_state* program_ = nullptr;
};

}  // namespace keel::detail::inline KEEL_MODE
