// The bodies of update_parts.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <algorithm>
#include <cmath>
#include <keel/accumulate/declared_batch.hpp>
#include <keel/collective/words_of_rank.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/step/shown_gradients.hpp>
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
                             bool const is_of_ranks = shard::is_of_ranks(recipe().shard);
                             return recipe_context(rules, optimizer, parameters, observer->judged(recipe()), length,
                                                   is_of_ranks ? world.size() : environment.ranks(), environment);
                           })),
      scaler(recipe().loss_scale),
      schedule(optimizer, recipe().schedule, length, custom.schedule_factor),
      clip(custom.make_clip(recipe().clip)),
      pass(model, parameters, recipe(), environment),
      trace(recipe().incident, model, optimizer, parameters),
      guards(recipe()),
      ladder(recipe(), model, engine, parameters.device, custom.take_rung),
      ranks(world) {
  bool const buffers = recipe().ema.buffers;
  if (recipe().ema.decay > 0.0)
    average.emplace(averaged_tensors(model, parameters, buffers), recipe().ema.decay,
                    averaged_names(model, parameters, buffers));
  if (shard::is_of_ranks(recipe().shard))
    ranks.begin(recipe(), parameters, model, optimizer, length, has_closure(),
                environment.decides_on_device(parameters.device));
}

KEEL_BODY update_parts::~update_parts() = default;

KEEL_BODY void update_parts::require_declared() const {
  require_declared_update(present().accumulate, micro_batches, pass.sums().rows * context.run().world_size, is_first());
}

KEEL_BODY update_decision update_parts::begin_decision() const {
  update_sums const& sums = pass.sums();
  update_decision found{{scaler.factor(), 0.0, sums.tokens, sums.rows, decides_on_device}};
  found.facts.parts = sums.parts;
  found.facts.origin = origin_of(sums);
  if (pass.has_zero_weight()) {
    found.skip_reason = reason::zero_weight;
    found.loss = found.norm = std::numeric_limits<double>::quiet_NaN();
  }
  return found;
}

KEEL_BODY void update_parts::judge(update_decision& found, std::variant<gradients<stage::checked>, nonfinite_gradient> result) {
  if (auto const* nonfinite = std::get_if<nonfinite_gradient>(&result)) {
    found.skip_reason = bad_gradient();
    found.where = parameters.names[nonfinite->parameter];
    found.norm = nonfinite->norm;
    return;
  }
  auto& checked = std::get<gradients<stage::checked>>(result);
  found.norm = checked.norm();
  found.skip_reason =
      std::isfinite(found.norm) ? guards.spike().judge(found.loss, found.norm) : std::optional<reason>(bad_gradient());
  if (found.skip_reason || is_spoiled(found) || overflows_squared(found)) return;
  if (observer->reads_gradients()) show_gradients(found.norm, checked.unscaled());
  if (pass.layers().is_on()) pass.layers().gradients(checked.norms(), checked.factor());
  found.clipped.emplace(std::move(checked).clip(*clip, present().clip));
  ranks.inside_with_gradients([&] { found.clipped->prepare(optimizer); });
  ranks.prepare_update();
}

KEEL_BODY bool update_parts::overflows_squared(update_decision& found) const {
  if (needs_whole_gradients(present().clip)) return false;
  double const limit = clip->norm_limit(present().clip);
  if (!(std::min(found.norm, limit) > squarable_norm(optimizer, parameters))) return false;
  found.skip_reason = reason::nonfinite_gradient;
  found.facts.origin = squarable_words(found.norm);
  return true;
}

KEEL_BODY bool update_parts::is_spoiled(update_decision& found) {
  found.where = pass.buffers().first_spoiled();
  if (!found.where.empty()) found.skip_reason = reason::nonfinite_buffer;
  return !found.where.empty();
}

KEEL_BODY void update_parts::show_gradients(double norm, std::vector<at::Tensor> const& unscaled) const {
  detail::show_gradients(parameters, unscaled,
                         [&] { observer->observe(event::gradients_ready{begun(), norm, parameters.tensors}); });
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
