// The configurations that a run can reach from its recipe through rungs of the ladder, rollbacks and a loss scale at its floor. Every rule
// checks each of these in addition to the recipe. First it checks the rungs in their order. Then it checks every subset of them, because a
// rung that would free nothing is skipped, with and without a lowered rate and a scale at its floor.
#pragma once

#include <keel/config/config.hpp>

namespace keel {

/// How a run reaches a configuration.
enum class origin : unsigned char {
  recipe,    ///< the initial configuration
  rung,      ///< oom::ladder took a rung
  rollback,  ///< nonfinite::rollback rolled back and lowered the learning rate
  floor,     ///< the dynamic loss scale backed off to its floor
};

namespace detail {

/// Returns true if half of the micro-batch is still a whole number of groups (or exactly half, if it already cuts groups) and the doubled
/// count does not overflow.
constexpr bool can_halve(config const& c) {
  long long const rows = c.accumulate.micro_batch, half = rows / 2;
  bool const groups = c.objective.kind != objective::kind::supervised && c.objective.group > 1 && !c.data.grouped;
  bool const cuts_groups = groups && rows % c.objective.group != 0;
  bool const keeps_groups = !groups || (cuts_groups ? rows % 2 == 0 : half % c.objective.group == 0);
  return half >= 1 && c.accumulate.count < (1LL << 62) && keeps_groups;
}

}  // namespace detail

namespace detail {

/// Removes a rung that was taken from the ladder, including its repetitions.
constexpr void remove_rung(config& c, oom::rung_settings const& rung) {
  int kept = 0;
  for (int i = 0; i < c.oom.count; ++i) {
    bool const both_halve = rung.kind == oom::rung_kind::halve_micro_batch && c.oom.rungs[i].kind == rung.kind;
    if (!both_halve && !(c.oom.rungs[i] == rung)) c.oom.rungs[kept++] = c.oom.rungs[i];
  }
  for (int i = kept; i < c.oom.count; ++i) c.oom.rungs[i] = {};
  c.oom.count = kept;
}

}  // namespace detail

/// Takes a rung once and removes it from the ladder; halve_micro_batch is removed only when nothing is left to halve.
constexpr void take_rung(config& c, oom::rung_settings const& rung) {
  switch (rung.kind) {
    case oom::rung_kind::halve_micro_batch:
      if (c.accumulate.count > 0 && c.accumulate.count < (1LL << 62)) c.accumulate.count *= 2;
      // If slices keep groups whole, half of a micro-batch is as many groups as fit, a number that is not known here.
      c.accumulate.micro_batch = c.data.grouped ? 0 : c.accumulate.micro_batch / 2;
      // The update keeps its exact number of rows, even an odd one, so the declared product is not checked again.
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
    case oom::rung_kind::custom:
      break;
    case oom::rung_kind::give_up:
    case oom::rung_kind::none:
      return;
  }
  if (rung.kind != oom::rung_kind::halve_micro_batch || !detail::can_halve(c)) detail::remove_rung(c, rung);
}

namespace detail {

template <class Visit>
constexpr void visit_rungs(config const& c, Visit& visit) {
  config reached = c;
  for (int i = 0; i < c.oom.count; ++i) {
    auto const& rung = c.oom.rungs[i];
    if (rung.kind == oom::rung_kind::halve_micro_batch) {
      // Halves down to one row, or to the last whole number of groups. For an undeclared size one halving represents all.
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

namespace detail {

/// Maximum number of rungs that are combined. A longer ladder repeats one, which O08 rejects.
inline constexpr int max_combined = 6;

constexpr bool changes_configuration(oom::rung_kind kind) {
  return kind == oom::rung_kind::enable_recompute || kind == oom::rung_kind::offload_optimizer ||
         kind == oom::rung_kind::fused_attention || kind == oom::rung_kind::quantize_base;
}

constexpr bool lowers_the_rate(config const& c) {
  return c.nonfinite.kind == nonfinite::kind::rollback && c.nonfinite.change == nonfinite::change::lower_lr &&
         c.nonfinite.attempts > 0;
}
/// True if the loss scale has a floor; P10 reports a floor of zero.
constexpr bool has_floor(config const& c) { return c.loss_scale.kind == loss_scale::kind::dynamic && c.loss_scale.floor > 0.0; }

constexpr void lower_the_rate(config& c) { c.run.learning_rate *= nonfinite::lowered_by; }

/// Calls `visit` for `reached` unchanged, unless it is the recipe, and with its micro-batch halved as often as possible.
template <class Visit>
constexpr bool visit_halved(config reached, int halving, int number, origin from, Visit& visit) {
  if (from != origin::recipe && !visit(reached, from, number)) return false;
  if (halving < 0) return true;
  int const last = number > halving + 1 ? number : halving + 1;
  bool const undeclared = reached.accumulate.micro_batch == 0;
  for (bool first = true; undeclared ? first : can_halve(reached); first = false) {
    take_rung(reached, {.kind = oom::rung_kind::halve_micro_batch});
    if (!visit(reached, origin::rung, last)) return false;
  }
  return true;
}

template <class Visit>
constexpr void visit_combinations(config const& c, Visit& visit) {
  int places[max_combined] = {};
  int count = 0;
  int halving = -1;
  for (int i = 0; i < c.oom.count; ++i) {
    auto const kind = c.oom.rungs[i].kind;
    if (kind == oom::rung_kind::halve_micro_batch && halving < 0) halving = i;
    if (changes_configuration(kind) && count < max_combined) places[count++] = i;
  }
  bool const lowers = lowers_the_rate(c);
  bool const falls = has_floor(c);
  if (count + (halving >= 0 ? 1 : 0) + (lowers ? 1 : 0) + (falls ? 1 : 0) < 2) return;
  for (int also = 0; also < 4; ++also) {
    bool const lowered = (also & 1) != 0;
    bool const at_floor = (also & 2) != 0;
    if ((lowered && !lowers) || (at_floor && !falls)) continue;
    config start = c;
    for (long long i = 0; lowered && i < c.nonfinite.attempts && i < 64; ++i) lower_the_rate(start);
    if (at_floor) start.loss_scale.initial = c.loss_scale.floor;
    for (int chosen = 0; chosen < 1 << count; ++chosen) {
      config reached = start;
      int number = 0;
      for (int i = 0; i < count; ++i) {
        if ((chosen >> i & 1) == 0) continue;
        take_rung(reached, c.oom.rungs[places[i]]);
        number = places[i] + 1;
      }
      auto const from = number > 0 ? origin::rung : at_floor ? origin::floor : lowered ? origin::rollback : origin::recipe;
      if (!visit_halved(reached, halving, number, from, visit)) return;
    }
  }
}

}  // namespace detail

/// Calls `visit(configuration, origin, number)` for each configuration that a run can reach besides its recipe. `number` is the rung's
/// position on the ladder, from 1, or 0; for several rungs it is that of the last. If `visit` returns false, that path is not followed
/// further.
template <class Visit>
constexpr void for_each_reachable(config const& c, Visit visit) {
  if (c.oom.count > 0) detail::visit_rungs(c, visit);
  if (detail::lowers_the_rate(c)) {
    config lowered = c;
    for (long long i = 0; i < c.nonfinite.attempts && i < 64; ++i) {
      detail::lower_the_rate(lowered);
      if (!visit(lowered, origin::rollback, 0)) return;
    }
  }
  if (detail::has_floor(c)) {
    config at_floor = c;
    at_floor.loss_scale.initial = c.loss_scale.floor;
    if (!visit(at_floor, origin::floor, 0)) return;
  }
  detail::visit_combinations(c, visit);
}

}  // namespace keel
