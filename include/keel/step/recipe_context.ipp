// Definitions for recipe_context.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <algorithm>
#include <keel/step/recipe_context.hpp>
#include <limits>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY run_facts facts_of_run(torch::optim::Optimizer& optimizer, parameter_list const& parameters, std::int64_t updates,
                                 precision::kind precision, std::int64_t ranks, bool is_part,
                                 step_environment const& environment) {
  double smallest = std::numeric_limits<double>::infinity();
  for (auto& group : optimizer.param_groups()) smallest = std::min(smallest, group.options().get_lr());
  auto kind = device::kind::any;
  if (parameters.device == at::kCPU) kind = device::kind::cpu;
  if (parameters.device == at::kCUDA) kind = device::kind::cuda;
  return {.known = true,
          .world_size = ranks,
          .updates = std::max<std::int64_t>(updates, 0),
          .learning_rate = smallest,
          .half_kernels = environment.computes_in_half(parameters.device),
          .bfloat16_kernels = precision != precision::kind::bf16 || environment.computes_in_bfloat16(parameters.device),
          .device = kind,
          .is_part = is_part,
          .is_length_pending = updates == run_facts::length_of_batches};
}

KEEL_BODY recipe_context::recipe_context(recipe_rules const& rules, torch::optim::Optimizer& optimizer,
                                         parameter_list const& parameters, config const& checked, std::int64_t updates,
                                         std::int64_t ranks, step_environment const& environment)
    : rules_(rules), value_(checked) {
  value_.model = value_.model | parameters.seen | rules.model;
  value_.optimizer = value_.optimizer | inspect_optimizer(optimizer) | rules.optimizer;
  value_.run =
      facts_of_run(optimizer, parameters, updates, rules.recipe.precision.kind, ranks, checked.run.is_part, environment);
  rules_.require_valid(value_);
}

KEEL_BODY void recipe_context::set_length(std::int64_t updates) {
  run_facts run = value_.run;
  run.updates = updates;
  run.is_length_pending = false;
  change(value_, run);
}

KEEL_BODY void recipe_context::change(config const& present, run_facts const& run) {
  config value = present;
  value.run = run;
  value.model = value.model | value_.model;
  value.optimizer = value.optimizer | value_.optimizer;
  rules_.require_valid(value);
  value.data = value_.data;
  value_ = value;
  checked_kind_ = nullptr;
}

KEEL_BODY void recipe_context::require_data_fits(data::settings const& batch, bool weighted) const {
  config value = value_;
  value.data = value.data | batch;
  if (value.data == rules_.recipe.data) return;
  value.data.token_weighted = weighted;
  rules_.require_data_valid(value);
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
