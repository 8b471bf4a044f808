// A recipe with all that a step knows when it is built: the facts of the model, the optimizer, the run and the device, and
// later those of the batches. Asks the rules wherever something new is known.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cstdint>
#include <keel/core/batch.hpp>
#include <keel/core/parameters.hpp>
#include <keel/optimizer/optimizer_facts.hpp>
#include <keel/recipe/valid.hpp>
#include <keel/step/require_valid.hpp>
#include <limits>

namespace keel::detail::inline KEEL_MODE {

/// Its address stands for a type of batch and whether its loss comes with a weight.
template <class Batch, bool Weighted>
inline constexpr char kind_of_batch = 0;

template <class Autocast>
run_facts facts_of_run(torch::optim::Optimizer& optimizer, parameter_list const& parameters, std::int64_t updates,
                       precision::kind precision, std::int64_t ranks, bool is_part) {
  double smallest = std::numeric_limits<double>::infinity();
  for (auto& group : optimizer.param_groups()) smallest = std::min(smallest, group.options().get_lr());
  auto kind = device::kind::any;
  if (parameters.device == at::kCPU) kind = device::kind::cpu;
  if (parameters.device == at::kCUDA) kind = device::kind::cuda;
  return {.known = true,
          .world_size = ranks,
          .updates = std::max<std::int64_t>(updates, 0),
          .learning_rate = smallest,
          .half_kernels = Autocast::computes_in_half(parameters.device),
          .bfloat16_kernels = precision != precision::kind::bf16 || Autocast::computes_in_bfloat16(parameters.device),
          .device = kind,
          .is_part = is_part,
          .is_length_open = updates == run_facts::length_of_batches};
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

template <class Recipe, class Autocast>
class recipe_context {
 public:
  /// `recipe` has all its numbers. Throws recipe_error where it or the facts break a rule.
  template <class Model, class Optimizer>
  recipe_context(Model const*, Optimizer& optimizer, parameter_list const& parameters, config const& recipe,
                 std::int64_t updates, std::int64_t ranks)
      : value_(
            require_valid<Recipe>(recipe,
                                  detail::facts_of_run<Autocast>(optimizer, parameters, updates,
                                                                 config_of<Recipe>.precision.kind, ranks, recipe.run.is_part),
                                  parameters.seen | facts<slot::model, module_of<Model>>(),
                                  seen_facts(optimizer) | facts<slot::optimizer, Optimizer>())) {}

  run_facts const& run() const { return value_.run; }
  optimizer::settings const& optimizer() const { return value_.optimizer; }

  /// The program changes numbers. Throws recipe_error where they break a rule, and leaves everything as it was.
  void change(config const& present) { change(present, value_.run); }

  /// What was open at construction. Throws recipe_error where it breaks a rule.
  void set_length(std::int64_t updates) {
    run_facts run = value_.run;
    run.updates = updates;
    run.is_length_open = false;
    change(value_, run);
  }

  /// What the source of the batches says of itself; asked with the first batch.
  void add_facts(data::settings const& data) {
    value_.data = value_.data | data;
    judged_ = nullptr;
  }

  /// Rules about the data, asked again where the kind of batch changes. Throws recipe_error.
  template <class Batch, bool Weighted>
  void require_data_fits() {
    if (judged_ == &detail::kind_of_batch<Batch, Weighted>) return;
    config value = value_;
    value.data = value.data | batch_facts<Batch>();
    if (!(value.data == config_of<Recipe>.data)) {
      value.data.token_weighted = Weighted;
      require_unbroken<detail::rules_about<Recipe>>(value);
    }
    judged_ = &detail::kind_of_batch<Batch, Weighted>;
  }

 private:
  void change(config const& present, run_facts const& run) {
    config value = require_valid<Recipe>(present, run, value_.model, value_.optimizer);
    value.data = value_.data;
    value_ = value;
    judged_ = nullptr;
  }

  config value_;
  char const* judged_ = nullptr;  ///< the kind of batch that the rules about data were asked for last
};

}  // namespace keel::inline KEEL_MODE
