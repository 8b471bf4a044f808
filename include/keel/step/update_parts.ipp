// Definitions for update_parts.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <algorithm>
#include <cmath>
#include <keel/accumulate/declared_batch.hpp>
#include <keel/collective/broadcast_string.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/step/exposed_gradients.hpp>
#include <keel/step/update_parts.hpp>
#include <limits>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY update_parts::update_parts(torch::nn::Module& its_model, torch::optim::Optimizer& its_optimizer,
                                     recipe_numbers const& its_numbers, recipe_rules const& rules,
                                     custom_policies const& custom, std::int64_t length, step_observer& listener,
                                     world_of_ranks const& world, step_environment const& machine)
    : numbers(its_numbers),
      model(its_model),
      optimizer(its_optimizer),
      engine(dynamic_cast<update_engine*>(std::addressof(its_optimizer))),
      environment(machine),
      observer(&listener),
      parameters(on_all_ranks(world, [&] { return collect_parameters(model, optimizer); })),
      context(on_all_ranks(world,
                           [&] {
                             bool const is_distributed = shard::is_distributed(recipe().shard);
                             return recipe_context(rules, optimizer, parameters, observer->with_run_facts(recipe()), length,
                                                   is_distributed ? world.size() : environment.ranks(), environment);
                           })),
      scaler(recipe().loss_scale),
      schedule(optimizer, recipe().schedule, length, custom.schedule_factor),
      clip(custom.make_clip(recipe().clip)),
      pass(model, parameters, recipe(), environment),
      trace(recipe().incident, model, optimizer, parameters),
      guards(recipe()),
      ladder(recipe(), model, engine, parameters.device, custom.take_rung),
      ranks(world) {
  if (!shard::is_distributed(recipe().shard) || recipe().shard.stage < 3 || world.size() == 1) require_whole_parameters(model);
  bool const buffers = recipe().ema.buffers;
  if (recipe().ema.decay > 0.0)
    average.emplace(averaged_tensors(model, parameters, buffers), recipe().ema.decay,
                    averaged_names(model, parameters, buffers), /*expects_shards=*/true);
  if (shard::is_distributed(recipe().shard))
    ranks.begin(recipe(), parameters, model, optimizer, length, has_closure(),
                environment.decides_on_device(parameters.device));
  if (!average || !ranks.shards_parameters()) return;
  parameter_shards const& shards = *ranks.sharded_parameters();
  average->set_shards({.find = [this](at::Tensor const& one) { return ranks.shard_of(one); },
                       .cut = [&](at::Tensor const& one, at::Tensor const& whole) { return shards.cut(one, whole); },
                       .assemble = [&](at::Tensor const& one, at::Tensor const& shard) { return shards.assemble(one, shard); },
                       .slice = [&](at::Tensor const& one) { return shards.slice_of(one); }});
  ranks.set_gathered_hook([this] { average->follow_shards(); });
}

KEEL_BODY update_parts::~update_parts() = default;

KEEL_BODY void update_parts::require_declared_rows() const {
  require_declared_update(current().accumulate, micro_batches, pass.sums().rows * context.run().world_size, is_first());
}

KEEL_BODY update_decision update_parts::begin_decision() const {
  update_sums const& sums = pass.sums();
  update_decision decision{{scaler.factor(), 0.0, sums.tokens, sums.rows, decides_on_device}};
  decision.facts.named_losses = sums.named_losses;
  decision.facts.origin = origin_of(sums);
  if (pass.has_zero_weight()) {
    decision.skip_reason = reason::zero_weight;
    decision.loss = decision.norm = std::numeric_limits<double>::quiet_NaN();
  }
  return decision;
}

KEEL_BODY void update_parts::judge(update_decision& decision,
                                   std::variant<gradients<stage::checked>, nonfinite_gradient> result) {
  if (auto const* nonfinite = std::get_if<nonfinite_gradient>(&result)) {
    decision.skip_reason = nonfinite_gradient_reason();
    decision.where = parameters.names[nonfinite->parameter];
    decision.norm = nonfinite->norm;
    return;
  }
  auto& checked = std::get<gradients<stage::checked>>(result);
  decision.norm = checked.norm();
  decision.skip_reason = std::isfinite(decision.norm) ? guards.spike().judge(decision.loss, decision.norm)
                                                      : std::optional<reason>(nonfinite_gradient_reason());
  if (decision.skip_reason || find_nonfinite_buffer(decision) || reject_if_square_overflows(decision)) return;
  if (observer->reads_gradients()) show_gradients(decision.norm, checked.unscaled());
  if (pass.layers().is_on()) pass.layers().gradients(checked.norms(), checked.factor());
  decision.clipped.emplace(std::move(checked).clip(*clip, current().clip));
  {
    auto const shards = ranks.sharded_gradients();
    decision.clipped->prepare(optimizer);
  }
  ranks.prepare_update();
  // What units have sharded since allocates now, and not once the parameters are updated.
  if (average) average->follow_shards();
}

KEEL_BODY bool update_parts::reject_if_square_overflows(update_decision& decision) const {
  if (needs_materialized_gradients(current().clip)) return false;
  double const limit = clip->norm_limit(current().clip);
  if (!(std::min(decision.norm, limit) > max_squarable_norm(optimizer, parameters))) return false;
  decision.skip_reason = reason::nonfinite_gradient;
  decision.facts.origin = describe_unsquarable_norm(decision.norm);
  return true;
}

KEEL_BODY bool update_parts::find_nonfinite_buffer(update_decision& decision) {
  decision.where = pass.buffers().first_nonfinite_buffer();
  if (!decision.where.empty()) decision.skip_reason = reason::nonfinite_buffer;
  return !decision.where.empty();
}

KEEL_BODY void update_parts::show_gradients(double norm, std::vector<at::Tensor> const& unscaled) const {
  auto const show = [&](parameter_list const& shown) {
    detail::show_gradients(shown, unscaled, [&] { observer->observe(event::gradients_ready{begun(), norm, shown.tensors}); });
  };
  if (!ranks.shards_gradients()) return show(parameters);
  parameter_list shards = parameters;
  shards.tensors = ranks.shards()->tensors();
  show(shards);
}

KEEL_BODY void update_parts::begin_update(update_facts& facts) {
  schedule.require_sound(begun() + 1);
  schedule.apply(optimizer);
  facts.learning_rate = schedule.rate();
  pass.begin_update();
}

KEEL_BODY void update_parts::step_optimizer(c10::function_ref<void()> update) {
  pass.layers().before_update();
  if (engine != nullptr) {
    name_out_of_memory_inside_engine(updates, update);
  } else {
    name_out_of_memory_inside_update(updates, update);
  }
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
