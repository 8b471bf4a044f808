// The evaluations of a run: their data, when they are due, and which value is monitored.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <keel/core/error.hpp>
#include <keel/core/time_source.hpp>
#include <keel/data/batch_source.hpp>
#include <keel/evaluation/evaluate.hpp>
#include <keel/recipe/config_of.hpp>
#include <keel/rule/not_implemented.hpp>
#include <keel/rule/reject_call.hpp>
#include <keel/step/program_state.hpp>
#include <keel/step/step_environment.hpp>
#include <keel/trainer/hooks.hpp>
#include <keel/trainer/progress.hpp>
#include <keel/trainer/run_log.hpp>
#include <keel/trainer/trained_models.hpp>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

class evaluator {
 public:
  /// References to the run, which must outlive the evaluator.
  struct run_context {
    trained_models& models;
    config const& recipe;
    phase_clock& phases;
    world_of_ranks const& world;
    step_environment const& environment;
    run_progress const& progress;
    run_log& log;
    keel::hooks& hooks;
    time_source const& time;
  };
  explicit evaluator(run_context const& of) : context_(of) {}
  evaluator(evaluator const&) = delete;
  evaluator& operator=(evaluator const&) = delete;

  /// Adds an evaluation, or replaces the one of the same name. Rejects batches that cannot be read again (U32) or counted (U14), and
  /// endless ones without a limit (E28).
  template <class Recipe, class Batches, class LossOf>
  void add(std::string name, Batches batches, LossOf loss_of) {
    using source = std::unwrap_reference_t<Batches>;
    if constexpr (!is_repeatable<source>) {
      reject_call<rule::U32, Batches>();
    } else if constexpr (!countable_batch<batch_of<source>>) {
      reject_call<rule::U14, batch_of<source>>();
    } else if constexpr (source_facts<source>().endless && config_of<Recipe>.evaluation.batches == 0) {
      reject_call<rule::E28, Batches>();
    } else {
      // The recipe may leave the limit to the program, so check it at run time too.
      if (source_facts<source>().endless && settings().batches == 0) throw broken_rule<recipe_error, rule::E28>();
      struct kept {
        Batches batches;
        LossOf loss_of;
      };
      auto const on = std::make_shared<kept>(kept{std::move(batches), std::move(loss_of)});
      replace_or_add(std::move(name), [this, on](std::int64_t most, evaluation_memory const& memory) {
        return measure(static_cast<std::unwrap_reference_t<Batches>&>(on->batches),
                       static_cast<std::unwrap_reference_t<LossOf>&>(on->loss_of), most, memory);
      });
    }
  }
  /// Sets the program state that evaluations restore; it must outlive this object.
  void set_restored_state(program_state& state) { program_ = &state; }

  /// Evaluates on all batches, independently of the recipe's evaluations. Collective for a multi-rank recipe.
  template <class Batches, class LossOf>
  evaluation_result evaluate(Batches& batches, LossOf& loss_of) {
    return evaluate(
        "", [&](std::int64_t most, evaluation_memory const& memory) { return measure(batches, loss_of, most, memory); });
  }
  /// Same as the overload above; returns an evaluation_result if `loss_of` returns batch_metrics, else the mean loss.
  template <class Batches, class LossOf>
  auto evaluate_once(Batches& batches, LossOf& loss_of) {
    evaluation_result const found = evaluate(batches, loss_of);
    using batch = batch_of<std::remove_reference_t<Batches>>;
    if constexpr (std::same_as<std::remove_cvref_t<std::invoke_result_t<LossOf&, batch const&>>, batch_metrics>) {
      return found;
    } else {
      return found.values.front().second;
    }
  }

  /// Runs all evaluations of the recipe and returns the monitored value. Throws error (E12) if no value has the monitored name.
  double evaluate_all();

  /// Calls `use(name, run)` for each evaluation; `run(most)` evaluates up to `most` batches without recording anything.
  void for_each_evaluation(std::function<void(std::string const&, std::function<void(std::int64_t)> const&)> const& use) const;

  /// Throws error (E12) if the recipe evaluates and no evaluation was added, or no model keeps the average that it evaluates.
  void require_evaluations() const;
  /// True if the recipe evaluates after `updates` updates.
  bool is_due(std::int64_t updates) const;
  /// True at the first update boundary after an epoch that the recipe evaluates.
  bool is_due_by_epochs() const;
  /// Sets a function to call before each batch of an evaluation.
  void set_before_batch_hook(std::function<void()> call) { before_batch_hook_ = std::move(call); }
  /// True during an evaluation, and after one that threw.
  bool is_evaluating_or_failed() const { return is_evaluating_or_failed_; }
  /// Duration of the slowest run of the recipe's evaluations, in seconds.
  double slowest() const { return slowest_; }

 private:
  /// Evaluates the first `most` batches, or all if it is 0.
  using measurement = std::function<evaluation_result(std::int64_t most, evaluation_memory const& memory)>;
  struct named_evaluation {
    std::string name;
    measurement measure;
  };

  template <class Batches, class LossOf>
  evaluation_result measure(Batches& batches, LossOf& loss_of, std::int64_t most, evaluation_memory const& memory) const {
    return keel::evaluate(context_.models.model(), context_.models.parameters().device,
                          context_.environment.autocast(context_.recipe.precision.kind), batches, loss_of, memory, most);
  }
  void require_averages() const;
  void replace_or_add(std::string name, measurement measure);
  evaluation_result evaluate(std::string const& name, measurement const& measure, std::int64_t most = 0);
  evaluation::settings const& settings() const { return context_.recipe.evaluation; }
  bool may_cut() const {
    // Ranks that gather parameters together cannot repeat a batch alone.
    return !context_.models.shards_parameters() && oom::has_rung(context_.recipe.oom, oom::rung_kind::halve_micro_batch);
  }
  double monitored_value(std::vector<std::pair<std::string, double>> const& values) const;

  run_context context_;
  std::vector<named_evaluation> all_;
  double slowest_ = 0.0;
  bool is_recipe_evaluation_ = false;
  std::function<void()> before_batch_hook_;
  bool is_evaluating_or_failed_ = false;
  program_state* program_ = nullptr;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/evaluator.ipp>
#endif
