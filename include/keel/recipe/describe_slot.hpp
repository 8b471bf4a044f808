// How each slot's settings are written: one function a slot, in the words that were typed, with every number in full.
#pragma once

#include <keel/recipe/config.hpp>
#include <keel/recipe/text.hpp>

namespace keel::detail {

inline char const* name(char const* const* names, auto kind) { return names[static_cast<int>(kind)]; }

inline slot_text describe_precision(config const& c) {
  static constexpr char const* names[] = {"fp32", "bf16", "fp16"};
  return slot_text{} << name(names, c.precision.kind);
}

inline slot_text describe_loss_scale(config const& c) {
  slot_text out;
  auto const& s = c.loss_scale;
  switch (s.kind) {
    case loss_scale::kind::none:
      return out << "none";
    case loss_scale::kind::fixed:
      return out << "fixed " << s.initial;
    case loss_scale::kind::dynamic:
      break;
  }
  return out << "dynamic, initial " << s.initial << ", growth " << s.growth << " after " << s.growth_interval << ", backoff "
             << s.backoff << " after " << s.hysteresis << ", floor " << s.floor
             << (s.raise_at_floor ? ", raise at floor" : ", continue at floor");
}

inline slot_text describe_accumulate(config const& c) {
  slot_text out;
  out << c.accumulate.count;
  if (c.accumulate.micro_batch > 0) out << ", micro_batch " << c.accumulate.micro_batch;
  if (c.accumulate.global_batch > 0) out << ", global_batch " << c.accumulate.global_batch;
  if (c.accumulate.reduce_once) out << ", reduce_once";
  return out;
}

inline slot_text describe_clip(config const& c) {
  static constexpr char const* names[] = {"none", "global_norm ", "value ", "adaptive ", "zscore ", "custom "};
  slot_text out;
  out << name(names, c.clip.kind);
  if (c.clip.kind != clip::kind::none) out << c.clip.limit;
  if (c.clip.kind == clip::kind::zscore) out << ", window " << c.clip.window;
  if (c.clip.at_most != 0.0) out << ", at_most " << c.clip.at_most;
  if (c.clip.order == clip::infinity) {
    out << ", order infinity";
  } else if (c.clip.order != 2.0) {
    out << ", order " << c.clip.order;
  }
  if (!c.own_clip.empty()) out << ", " << c.own_clip.letters;
  return out;
}

inline slot_text describe_nonfinite(config const& c) {
  static constexpr char const* names[] = {"raise", "warn ", "skip ", "rollback "};
  static constexpr char const* changes[] = {"change nothing", "skip data", "lower lr", "reseed"};
  auto const& n = c.nonfinite;
  slot_text out;
  out << name(names, n.kind);
  if (n.kind != nonfinite::kind::raise) out << n.limit;
  if (n.kind == nonfinite::kind::rollback) out << ", " << name(changes, n.change) << ", attempts " << n.attempts;
  if (!n.agreed) out << ", rank local";
  return out;
}

inline slot_text describe_attention(config const& c) {
  constexpr char const* names[] = {"automatic", "math", "fused"};
  return slot_text{} << name(names, c.attention.kind);
}

inline slot_text describe_spike(config const& c) {
  static constexpr char const* names[] = {"ignore", "skip", "rollback"};
  slot_text out;
  out << name(names, c.spike.kind);
  if (c.spike.kind != spike::kind::ignore) {
    out << ", zscore " << c.spike.zscore << ", window " << c.spike.window << ", in a row " << c.spike.limit;
  }
  if (c.spike.ratio != 0.0) out << ", ratio " << c.spike.ratio;
  if (c.spike.loss_above != 0.0) out << ", loss above " << c.spike.loss_above;
  if (c.spike.gradient_norm_above != 0.0) out << ", gradient norm above " << c.spike.gradient_norm_above;
  if (c.spike.attempts != 0) out << ", attempts " << c.spike.attempts;
  if (!c.spike.agreed) out << ", rank local";
  return out;
}

inline slot_text describe_schedule(config const& c) {
  static constexpr char const* names[] = {"constant",   "linear",        "cosine",       "warmup_stable_decay", "one_cycle",
                                          "plateau",    "polynomial",    "inverse_root", "exponential",         "step_decay",
                                          "multi_step", "warm_restarts", "custom"};
  auto const& s = c.schedule;
  slot_text out;
  out << name(names, s.kind);
  if (s.warmup != 0) out << ", warmup " << s.warmup << " steps";
  if (s.warmup_ratio != 0.0) out << ", warmup_ratio " << s.warmup_ratio;
  if (s.kind == schedule::kind::one_cycle && s.warmup == 0 && s.warmup_ratio == 0.0) out << ", warmup_ratio 0.3";
  if (s.total != 0) out << ", total " << s.total << " steps";
  if (s.decay != 0) out << ", decay " << s.decay << " steps";
  if (s.min_ratio != 0.0) out << ", min_ratio " << s.min_ratio;
  if (s.min_lr != 0.0) out << ", min_lr " << s.min_lr;
  if (s.start_ratio != 0.0) out << ", start_ratio " << s.start_ratio;
  if (s.patience != 0) out << ", patience " << s.patience << " steps";
  if (s.lowered_by != 0.0) out << ", lowered_by " << s.lowered_by;
  if (s.threshold != 0.0) out << ", threshold " << s.threshold;
  if (s.evaluations != 0) out << ", evaluations " << s.evaluations;
  if (s.interval != 0) out << ", interval " << s.interval << " steps";
  if (s.power != 0.0) out << ", power " << s.power;
  if (s.cycle != 0) out << ", cycle " << s.cycle << " steps";
  if (s.cycle_factor != 0) out << ", cycle_factor " << s.cycle_factor;
  for (int i = 0; i < s.milestone_count && i < schedule::max_milestones; ++i)
    out << (i == 0 ? ", milestones " : " ") << s.milestones[i];
  if (s.milestone_count != 0) out << " steps";
  if (!c.own_schedule.empty()) out << ", " << c.own_schedule.letters;
  return out;
}

inline slot_text describe_checkpoint(config const& c) {
  auto const& s = c.checkpoint;
  slot_text out;
  switch (s.kind) {
    case checkpoint::kind::never:
      return out << "never";
    case checkpoint::kind::every_steps:
      out << "every " << s.interval << " steps";
      break;
    case checkpoint::kind::every_seconds:
      out << "every " << s.interval << " s";
      break;
    case checkpoint::kind::every_epochs:
      out << "every " << s.interval << " epochs";
      break;
    case checkpoint::kind::every_tokens:
      out << "every " << s.interval << " tokens";
      break;
    case checkpoint::kind::young_daly:
      out << "young_daly, mean time between failures " << s.mean_time_between_failures << " s";
      break;
  }
  out << ", keep " << s.keep;
  if (s.keep_every != 0) out << ", and every " << s.keep_every << " steps";
  out << (s.asynchronous ? ", asynchronous" : "") << (s.drop_when_busy ? ", dropped when busy" : "");
  if (s.failures != 3) out << ", failures " << s.failures;
  if (s.best) {
    out << ", ";
    if (s.best_count > 1) out << s.best_count << " ";
    out << (s.metric == checkpoint::metric::training_loss ? "best by training loss" : "best by evaluation loss");
  }
  if (s.on_best) out << " at once";
  if (s.on_exception) out << ", on_exception";
  return out;
}

inline char const* recompute_name(recompute_kind kind) {
  static constexpr char const* names[] = {"none", "reentrant", "non_reentrant"};
  return name(names, kind);
}

inline slot_text describe_shard(config const& c) {
  slot_text out;
  switch (c.shard.kind) {
    case shard::kind::none:
      return out << "none";
    case shard::kind::replicate:
      return out << "replicate";
    case shard::kind::zero:
      break;
  }
  return out << "zero " << c.shard.stage;
}

inline slot_text describe_oom(config const& c) {
  static constexpr char const* names[] = {"none",
                                          "halve_micro_batch",
                                          "enable_recompute ",
                                          "offload_optimizer",
                                          "fused_attention",
                                          "quantize_base",
                                          "shorten_sequence ",
                                          "give_up",
                                          "custom"};
  slot_text out;
  if (c.oom.kind == oom::kind::raise) return out << "raise";
  out << "ladder";
  for (int i = 0; i < c.oom.count; ++i) {
    auto const& rung = c.oom.rungs[i];
    out << (i == 0 ? " " : ", ") << name(names, rung.kind);
    if (rung.kind == oom::rung_kind::enable_recompute) out << recompute_name(rung.recompute);
    if (rung.kind == oom::rung_kind::shorten_sequence) out << rung.length;
  }
  if (c.oom.climb_back > 0) out << ", climb back after " << c.oom.climb_back;
  return out;
}

inline slot_text describe_health(config const& c) {
  static constexpr char const* names[] = {"off", "sft", "grpo", "ebft", "watch "};
  slot_text out;
  out << name(names, c.health.kind);
  if (c.health.kind == health::kind::watch) out << c.health.alarms << " alarms";
  return out;
}

inline slot_text describe_determinism(config const& c) {
  static constexpr char const* names[] = {"off", "seeded ", "strict "};
  slot_text out;
  out << name(names, c.determinism.kind);
  if (c.determinism.kind != determinism::kind::off) out << c.determinism.seed;
  return out;
}

inline slot_text describe_objective(config const& c) {
  static constexpr char const* names[] = {"supervised", "grpo ", "ebft "};
  slot_text out;
  out << name(names, c.objective.kind);
  if (c.objective.kind != objective::kind::supervised) out << "group " << c.objective.group;
  return out;
}

inline slot_text describe_evaluation(config const& c) {
  slot_text out;
  if (c.evaluation.kind == evaluation::kind::none) return out << "none";
  out << "every " << c.evaluation.interval << (c.evaluation.kind == evaluation::kind::every ? " steps" : " epochs");
  if (c.evaluation.batches != 0) out << ", batches " << c.evaluation.batches;
  if (c.evaluation.early_stop != 0) out << ", early_stop " << c.evaluation.early_stop;
  if (c.evaluation.min_delta != 0.0) out << ", min_delta " << c.evaluation.min_delta;
  if (c.evaluation.not_before != 0) out << ", not_before " << c.evaluation.not_before << " steps";
  if (c.evaluation.has_stop_at) out << ", stop_at " << c.evaluation.stop_at;
  if (c.evaluation.stop_on_nonfinite) out << ", stop_on_nonfinite";
  if (!c.evaluation.monitor.empty()) out << ", monitor " << c.evaluation.monitor.letters;
  if (c.evaluation.larger) out << ", larger is better";
  if (c.evaluation.averaged) out << ", of the average";
  return out;
}

inline slot_text describe_profile(config const& c) {
  slot_text out;
  if (c.profile.kind == profile::kind::off) return out << "off";
  return out << "every " << c.profile.period << " steps, warmup " << c.profile.warmup << ", active " << c.profile.active;
}

/// Names with a number or a truth, those that are not zero; `nothing` if all are.
struct named_value {
  char const* name;
  long long value;
};
template <int Count>
slot_text describe_set(named_value const (&values)[Count], char const* unit, char const* nothing) {
  slot_text out;
  for (named_value const& one : values) {
    if (one.value == 0) continue;
    if (out.size() > 0) out << ", ";
    out << one.name;
    if (*unit != '\0') out << " " << one.value << unit;
  }
  return out.size() > 0 ? out : out << nothing;
}

inline slot_text describe_timeout(config const& c) {
  auto const& t = c.timeout;
  return describe_set({{"soft", t.soft},
                       {"hard", t.hard},
                       {"collective", t.collective},
                       {"first_update", t.first_update},
                       {"heartbeat_interval", t.heartbeat_interval},
                       {"heartbeat_limit", t.heartbeat_limit},
                       {"grace", t.grace},
                       {"force_exit", t.force_exit},
                       {"longest_update", t.longest_update},
                       {"longest_save", t.longest_save}},
                      " s", "none");
}

inline slot_text describe_model(config const& c) {
  auto const& m = c.model;
  bool const only_frozen = m.partly_frozen && !m.adapters;
  return describe_set({{"partly_frozen", only_frozen},
                       {"adapters", m.adapters},
                       {"batch_norm", m.batch_norm},
                       {"dropout", m.dropout},
                       {"tied_weights", m.tied_weights},
                       {"routing", m.routing},
                       {"inner_gradients", m.inner_gradients},
                       {"half_parameters", m.half_parameters},
                       {"bfloat16_parameters", m.bfloat16_parameters},
                       {"sequence_boundaries", m.sequence_boundaries},
                       {"inputs_require_grad", m.inputs_require_grad}},
                      "", "all_trainable");
}

inline slot_text describe_optimizer(config const& c) {
  auto const& o = c.optimizer;
  return describe_set({{"closure", o.closure},
                       {"unscales", o.unscales},
                       {"whole_tensors", o.whole_tensors},
                       {"device_only", o.device_only},
                       {"state_on_host", o.state_on_host}},
                      "", "usual");
}

inline slot_text describe_data(config const& c) {
  auto const& d = c.data;
  slot_text out = describe_set({{"ragged", d.ragged},
                                {"token_weighted", d.token_weighted},
                                {"packed", d.packed},
                                {"grouped", d.grouped},
                                {"endless", d.endless},
                                {"finite", d.finite},
                                {"drops_last", d.drops_last},
                                {"single_pass", d.single_pass}},
                               "", d.rows == 0 ? "usual" : "");
  if (d.rows != 0) out << (out.size() > 0 ? ", rows " : "rows ") << d.rows;
  return out;
}

inline slot_text describe_device(config const& c) {
  static constexpr char const* names[] = {"any", "cpu", "cuda"};
  slot_text out;
  out << name(names, c.device.kind);
  if (c.device.graph_captured) out << ", graph_captured";
  if (c.device.device_assert) out << ", device_assert";
  return out;
}

inline slot_text describe_world(config const& c) {
  slot_text out;
  if (!c.world.declared) return out << "any";
  return out << "size " << c.world.ranks;
}

inline slot_text describe_ema(config const& c) {
  slot_text out;
  if (!c.ema.kept) return out << "none";
  out << c.ema.decay;
  if (c.ema.buffers) out << ", buffers";
  return out;
}

}  // namespace keel::detail
