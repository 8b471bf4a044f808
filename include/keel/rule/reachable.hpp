// Where a run can come to from its recipe: what the rungs of the ladder, a rollback and a loss scale at its floor make of the
// configuration. Every rule is asked about each of these, not only about the recipe.
#pragma once

#include <keel/recipe/config.hpp>

namespace keel {

/// How a run comes to a configuration.
enum class origin : unsigned char {
  recipe,    ///< it begins there
  rung,      ///< oom::ladder took a rung
  rollback,  ///< nonfinite::rollback went back and changed something
  floor,     ///< the dynamic loss scale backed off to its floor
};

namespace detail {

/// Half of the micro-batch is still a whole number of groups.
constexpr bool can_halve(config const& c) {
  long long const half = c.accumulate.micro_batch / 2;
  bool const groups = c.objective.kind != objective::kind::supervised && c.objective.group > 1 && !c.data.grouped;
  return half >= 1 && (!groups || half % c.objective.group == 0);
}

}  // namespace detail

/// Takes a rung once.
constexpr void take_rung(config& c, oom::rung_settings const& rung) {
  switch (rung.kind) {
    case oom::rung_kind::halve_micro_batch:
      if (c.accumulate.count > 0 && c.accumulate.count < (1LL << 62)) c.accumulate.count *= 2;
      // Where slices keep groups whole, a half is as many groups as fit, which no number here says.
      c.accumulate.micro_batch = c.data.grouped ? 0 : c.accumulate.micro_batch / 2;
      // The update keeps its rows exactly, odd ones too, so the declared product is not asked for again.
      c.accumulate.global_batch = 0;
      break;
    case oom::rung_kind::enable_recompute:
      c.recompute.kind = rung.recompute;
      break;
    case oom::rung_kind::offload_optimizer:
      c.offload.kind = offload::kind::optimizer;
      break;
    case oom::rung_kind::fused_attention:
      c.attention.kind = attention_kind::fused;
      break;
    case oom::rung_kind::quantize_base:
      c.model.partly_frozen = true;
      break;
    case oom::rung_kind::shorten_sequence:
    case oom::rung_kind::give_up:
    case oom::rung_kind::custom:
    case oom::rung_kind::none:
      break;
  }
}

namespace detail {

template <class Visit>
constexpr void visit_rungs(config const& c, Visit& visit) {
  config reached = c;
  // The ladder itself is judged in the recipe: a rung that was taken is not one that frees nothing (O08).
  reached.oom.kind = oom::kind::raise;
  reached.oom.count = 0;
  for (int i = 0; i < c.oom.count; ++i) {
    auto const& rung = c.oom.rungs[i];
    if (rung.kind == oom::rung_kind::halve_micro_batch) {
      // Down to one row, or to the last whole number of groups; of an undeclared size the first halving stands for all.
      bool const undeclared = c.accumulate.micro_batch == 0;
      for (bool first = true; undeclared ? first : can_halve(reached); first = false) {
        take_rung(reached, rung);
        if (!visit(reached, origin::rung, i + 1)) return;
      }
    } else {
      take_rung(reached, rung);
      if (!visit(reached, origin::rung, i + 1)) return;
    }
  }
}

}  // namespace detail

/// Calls `visit(configuration, origin, number)` for everything that a run can come to beside its recipe; `number` is the rung's
/// place on the ladder, from 1, or 0. Where `visit` returns false, that way is not followed further.
template <class Visit>
constexpr void for_each_reachable(config const& c, Visit visit) {
  if (c.oom.count > 0) detail::visit_rungs(c, visit);
  if (c.nonfinite.kind == nonfinite::kind::rollback && c.nonfinite.change == nonfinite::change::lower_lr) {
    config lowered = c;
    for (long long i = 0; i < c.nonfinite.attempts && i < 64; ++i) {
      lowered.run.learning_rate *= nonfinite::lowered_by;
      if (!visit(lowered, origin::rollback, 0)) return;
    }
  }
  // A floor of nothing is P10's.
  if (c.loss_scale.kind == loss_scale::kind::dynamic && c.loss_scale.floor > 0.0) {
    config at_floor = c;
    at_floor.loss_scale.initial = c.loss_scale.floor;
    visit(at_floor, origin::floor, 0);
  }
}

}  // namespace keel
