// A recipe with the facts that a step knows at construction, about the model, the optimizer, the run and the device. Facts about the
// batches follow later. Checks the rules again whenever a fact is added.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <keel/config/config.hpp>
#include <keel/core/batch.hpp>
#include <keel/core/parameters.hpp>
#include <keel/optimizer/optimizer_facts.hpp>
#include <keel/step/require_valid.hpp>
#include <keel/step/step_environment.hpp>

namespace keel::detail::inline KEEL_MODE {

/// Its address identifies a batch type and whether the loss has a weight.
template <class Batch, bool Weighted>
inline constexpr char batch_kind_tag = 0;

/// The rules of a recipe, custom ones included, and the facts that the types of model and optimizer declare.
struct recipe_rules {
  config recipe;  ///< as declared by its types
  /// Both throw recipe_error, which lists the rules that a configuration breaks. The first checks all rules, the second those about data.
  void (*require_valid)(config const&);
  void (*require_data_valid)(config const&);
  model::settings model;
  optimizer::settings optimizer;
};

template <class Recipe, class Model, class Optimizer>
recipe_rules rules_of() {
  return {config_of<Recipe>, &require_valid<typename with_types_of<Recipe>::template rules<void>>,
          &require_valid<rules_about<Recipe>>, facts<slot::model, module_of<Model>>(), facts<slot::optimizer, Optimizer>()};
}

class recipe_context {
 public:
  /// `checked`: the recipe with all of its numbers and the facts about its run. Throws recipe_error if it breaks a rule, alone or with the
  /// facts.
  recipe_context(recipe_rules const& rules, torch::optim::Optimizer& optimizer, parameter_list const& parameters,
                 config const& checked, std::int64_t updates, std::int64_t ranks, step_environment const& environment);

  run_facts const& run() const { return value_.run; }
  optimizer::settings const& optimizer() const { return value_.optimizer; }

  /// Changes numbers. Throws recipe_error, without any change, if they break a rule.
  void change(config const& present) { change(present, value_.run); }
  /// Sets the run's length, in updates, if it was pending at construction. Throws recipe_error if it breaks a rule.
  void set_length(std::int64_t updates);
  /// Adds facts about the source of the batches; checked with the next batch.
  void add_facts(data::settings const& data) {
    value_.data = value_.data | data;
    checked_kind_ = nullptr;
  }

  /// Checks the rules about data if the kind of batch changed. Throws recipe_error.
  template <class Batch, bool Weighted>
  void require_data_fits() {
    if (checked_kind_ != &batch_kind_tag<Batch, Weighted>) require_data_fits(batch_facts<Batch>(), Weighted);
    checked_kind_ = &batch_kind_tag<Batch, Weighted>;
  }

 private:
  void change(config const& present, run_facts const& run);
  void require_data_fits(data::settings const& batch, bool weighted) const;

  recipe_rules rules_;
  config value_;
  char const* checked_kind_ = nullptr;  ///< the kind of batch that was checked last
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/recipe_context.ipp>
#endif
