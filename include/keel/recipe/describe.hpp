// Prints a recipe: one line a slot, in the words that were typed, with every number in full. Two configurations with the
// same lines are the same run, which is what a checkpoint compares.
#pragma once

#include <keel/recipe/check.hpp>
#include <keel/recipe/config_of.hpp>
#include <keel/recipe/describe_slot.hpp>

namespace keel {

/// Calls `visit(slot_name, slot_text)` for every slot, in the order of keel::slot.
template <class Visit>
void for_each_slot(config const& c, Visit&& visit) {
  visit("precision", detail::describe_precision(c));
  visit("loss_scale", detail::describe_loss_scale(c));
  visit("accumulate", detail::describe_accumulate(c));
  visit("clip", detail::describe_clip(c));
  visit("nonfinite", detail::describe_nonfinite(c));
  visit("spike", detail::describe_spike(c));
  visit("schedule", detail::describe_schedule(c));
  visit("checkpoint", detail::describe_checkpoint(c));
  visit("recompute", slot_text{} << detail::recompute_name(c.recompute.kind));
  visit("shard", detail::describe_shard(c));
  visit("offload", slot_text{} << (c.offload.kind == offload::kind::none ? "none" : "optimizer"));
  visit("attention", detail::describe_attention(c));
  visit("oom", detail::describe_oom(c));
  visit("health", detail::describe_health(c));
  visit("determinism", detail::describe_determinism(c));
  visit("objective", detail::describe_objective(c));
  visit("ema", detail::describe_ema(c));
  visit("evaluation", detail::describe_evaluation(c));
  visit("profile", detail::describe_profile(c));
  visit("timeout", detail::describe_timeout(c));
  visit("model", detail::describe_model(c));
  visit("optimizer", detail::describe_optimizer(c));
  visit("data", detail::describe_data(c));
  visit("device", detail::describe_device(c));
  visit("world", detail::describe_world(c));
}

/// The configuration as a table, one line a slot.
inline recipe_text describe(config const& c) {
  recipe_text out;
  for_each_slot(c, [&](char const* name, slot_text const& value) {
    int const column = out.size() + 14;
    out << name;
    out.pad_to(column);
    out << value.c_str() << "\n";
  });
  return out;
}

/// The recipe as a table: `std::cout << keel::describe<mine>();`
template <class Recipe>
recipe_text describe() {
  return describe(config_of<Recipe>);
}

}  // namespace keel
