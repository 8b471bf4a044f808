// A recipe with all that a step knows when it is built: the facts of the model, the optimizer, the run and the device, and
// later those of the batches. Asks the rules wherever something new is known.
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

/// Its address stands for a type of batch and whether its loss comes with a weight.
template <class Batch, bool Weighted>
inline constexpr char batch_kind_tag = 0;

/// What a recipe's types bring: its rules, the program's own among them, and what the types of model and optimizer say of themselves.
struct recipe_rules {
  config recipe;  ///< as its types have it
  /// Each throws recipe_error with the rules that a configuration breaks: all of them, or those about data.
  void (*require_unbroken)(config const&);
  void (*require_data_unbroken)(config const&);
  model::settings model;
  optimizer::settings optimizer;
};

template <class Recipe, class Model, class Optimizer>
recipe_rules rules_of() {
  return {config_of<Recipe>, &require_unbroken<typename with_types_of<Recipe>::template rules<void>>,
          &require_unbroken<rules_about<Recipe>>, facts<slot::model, module_of<Model>>(), facts<slot::optimizer, Optimizer>()};
}

class recipe_context {
 public:
  /// `judged` has all its numbers. Throws recipe_error where it or the facts break a rule.
  recipe_context(recipe_rules const& rules, torch::optim::Optimizer& optimizer, parameter_list const& parameters,
                 config const& judged, std::int64_t updates, std::int64_t ranks, step_environment const& environment);

  run_facts const& run() const { return value_.run; }
  optimizer::settings const& optimizer() const { return value_.optimizer; }

  /// The program changes numbers. Throws recipe_error where they break a rule, and leaves everything as it was.
  void change(config const& present) { change(present, value_.run); }
  /// What was open at construction. Throws recipe_error where it breaks a rule.
  void set_length(std::int64_t updates);
  /// What the source of the batches says of itself; asked with the first batch.
  void add_facts(data::settings const& data) {
    value_.data = value_.data | data;
    judged_ = nullptr;
  }

  /// Rules about the data, asked again where the kind of batch changes. Throws recipe_error.
  template <class Batch, bool Weighted>
  void require_data_fits() {
    if (judged_ != &batch_kind_tag<Batch, Weighted>) require_data_fits(batch_facts<Batch>(), Weighted);
    judged_ = &batch_kind_tag<Batch, Weighted>;
  }

 private:
  void change(config const& present, run_facts const& run);
  void require_data_fits(data::settings const& batch, bool weighted) const;

  recipe_rules rules_;
  config value_;
  char const* judged_ = nullptr;  ///< the kind of batch that the rules about data were asked for last
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/recipe_context.ipp>
#endif
