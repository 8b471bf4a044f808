// How a configuration file spells each slot: its policies by name, what stands for a policy's own argument, and its fields. One
// struct a slot, read in both directions by load_config.hpp. Defaults come from the policies themselves.
#pragma once

#include <keel/recipe/config.hpp>
#include <tuple>

namespace keel::detail {

template <class Settings>
struct policy_format {
  char const* name;
  Settings start;
  char const* fields = "";         ///< that the policy takes, between blanks; "*": all of the slot's
  char const* argument = nullptr;  ///< the field that `{"name": value}` sets
  bool needs_argument = false;     ///< the name alone says too little
};

struct precision_format {
  static constexpr char const* slot = "precision";
  static auto& of(auto& c) { return c.precision; }
  static constexpr policy_format<precision::settings> policies[] = {
      {"fp32", precision::fp32::configured}, {"bf16", precision::bf16::configured}, {"fp16", precision::fp16::configured}};
  static void fields(auto&, auto&) {}
};

struct loss_scale_format {
  static constexpr char const* slot = "loss_scale";
  static auto& of(auto& c) { return c.loss_scale; }
  static constexpr policy_format<loss_scale::settings> policies[] = {
      {"none", loss_scale::none::configured},
      {"fixed", {.kind = loss_scale::kind::fixed}, " initial ", "initial", true},
      {"dynamic", loss_scale::dynamic<>::configured, "*"}};
  static void fields(auto& s, auto& field) {
    field.number("initial", s.initial);
    field.number("growth", s.growth);
    field.number("backoff", s.backoff);
    field.number("growth_interval", s.growth_interval);
    field.number("hysteresis", s.hysteresis);
    field.number("floor", s.floor);
    field.truth("raise_at_floor", s.raise_at_floor);
  }
};

struct accumulate_format {
  static constexpr char const* slot = "accumulate";
  static auto& of(auto& c) { return c.accumulate; }
  static constexpr policy_format<accumulate_settings> policies[] = {{"accumulate", accumulate<1>::configured, "*", "count"}};
  static void fields(auto& s, auto& field) {
    field.number("count", s.count);
    field.number("micro_batch", s.micro_batch);
    field.number("global_batch", s.global_batch);
    field.truth("reduce_once", s.reduce_once);
  }
};

struct clip_format {
  static constexpr char const* slot = "clip";
  static auto& of(auto& c) { return c.clip; }
  static constexpr policy_format<clip::settings> policies[] = {
      {"none", clip::none::configured},
      {"global_norm", {clip::kind::global_norm}, " limit order ", "limit", true},
      {"value", {clip::kind::value}, " limit ", "limit", true},
      {"adaptive", {clip::kind::adaptive}, " limit ", "limit", true},
      {"zscore", clip::zscore<0.0>::configured, " limit window at_most ", "limit", true}};
  static void fields(auto& s, auto& field) {
    field.number("limit", s.limit);
    field.updates("window", s.window);
    field.number("at_most", s.at_most);
    field.number_or_infinity("order", s.order);
  }
};

struct nonfinite_format {
  static constexpr char const* slot = "nonfinite";
  static auto& of(auto& c) { return c.nonfinite; }
  static constexpr policy_format<nonfinite::settings> policies[] = {
      {"raise", nonfinite::raise::configured, " agreed "},
      {"warn", nonfinite::warn<0>::configured, " limit agreed ", "limit", true},
      {"skip", nonfinite::skip<0>::configured, " limit agreed ", "limit", true},
      {"rollback", nonfinite::rollback<0>::configured, "*", "limit", true}};
  static void fields(auto& s, auto& field) {
    field.number("limit", s.limit);
    field.choice("change", s.change, {"nothing", "skip_data", "lower_lr", "reseed"});
    field.number("attempts", s.attempts);
    field.truth("agreed", s.agreed);
  }
};

struct spike_format {
  static constexpr char const* slot = "spike";
  static auto& of(auto& c) { return c.spike; }
  static constexpr policy_format<spike::settings> policies[] = {
      {"ignore", spike::ignore::configured},
      {"skip", spike::skip<>::configured, " zscore window limit agreed ratio loss_above gradient_norm_above ", "zscore"},
      {"rollback", spike::rollback<>::configured, "*", "zscore"}};
  static void fields(auto& s, auto& field) {
    field.number("zscore", s.zscore);
    field.updates("window", s.window);
    field.number("limit", s.limit);
    field.number("attempts", s.attempts);
    field.truth("agreed", s.agreed);
    field.number("ratio", s.ratio);
    field.number("loss_above", s.loss_above);
    field.number("gradient_norm_above", s.gradient_norm_above);
  }
};

struct schedule_format {
  static constexpr char const* slot = "schedule";
  static auto& of(auto& c) { return c.schedule; }
  static constexpr policy_format<schedule::settings> policies[] = {
      {"constant", schedule::constant::configured, "*"},
      {"linear", schedule::linear<>::configured, "*"},
      {"cosine", schedule::cosine<>::configured, "*"},
      {"warmup_stable_decay", schedule::warmup_stable_decay<>::configured, "*"},
      {"one_cycle", schedule::one_cycle<>::configured, "*"},
      {"plateau", schedule::plateau<>::configured, "*"},
      {"polynomial", schedule::polynomial<>::configured, "*"},
      {"inverse_root", schedule::inverse_root<>::configured, "*"},
      {"exponential", schedule::exponential<>::configured, "*"},
      {"step_decay", schedule::step_decay<>::configured, "*"},
      {"multi_step", schedule::multi_step<>::configured, "*"},
      {"warm_restarts", schedule::warm_restarts<>::configured, "*"}};
  static void fields(auto& s, auto& field) {
    field.updates("warmup", s.warmup);
    field.number("warmup_ratio", s.warmup_ratio);
    field.updates("total", s.total);
    field.updates("decay", s.decay);
    field.number("min_ratio", s.min_ratio);
    field.number("min_lr", s.min_lr);
    field.number("start_ratio", s.start_ratio);
    field.number("evaluations", s.evaluations);
    // As keel::schedule::evaluations: they take the place of the default patience.
    if (s.evaluations != 0) s.patience = 0;
    field.updates("patience", s.patience);
    field.number("lowered_by", s.lowered_by);
    field.number("threshold", s.threshold);
    field.updates("interval", s.interval);
    field.number("power", s.power);
    field.updates("cycle", s.cycle);
    field.number("cycle_factor", s.cycle_factor);
    field.list_of_updates("milestones", s.milestones, s.milestone_count);
  }
};

struct checkpoint_format {
  static constexpr char const* slot = "checkpoint";
  static constexpr char const* timed =
      " interval keep keep_every asynchronous drop_when_busy failures keep_best keep_k_best on_best on_exception metric ";
  static auto& of(auto& c) { return c.checkpoint; }
  static constexpr policy_format<checkpoint::settings> policies[] = {
      {"never", checkpoint::never::configured},
      {"every_steps", {.kind = checkpoint::kind::every_steps}, timed, "interval", true},
      {"every_epochs", {.kind = checkpoint::kind::every_epochs}, timed, "interval", true},
      {"every_tokens", {.kind = checkpoint::kind::every_tokens}, timed, "interval", true},
      {"every_seconds", {.kind = checkpoint::kind::every_seconds}, timed, "interval", true},
      {"young_daly", checkpoint::young_daly<>::configured,
       " mean_time_between_failures keep asynchronous drop_when_busy failures keep_best keep_k_best on_best on_exception "
       "metric ",
       "mean_time_between_failures"}};
  static void fields(auto& s, auto& field) {
    switch (s.kind) {
      case checkpoint::kind::every_seconds:
        field.seconds("interval", s.interval);
        break;
      case checkpoint::kind::every_epochs:
        field.epochs("interval", s.interval);
        break;
      case checkpoint::kind::every_tokens:
        field.tokens("interval", s.interval);
        break;
      default:
        field.updates("interval", s.interval);
    }
    field.number("keep", s.keep);
    field.truth("asynchronous", s.asynchronous);
    field.seconds("mean_time_between_failures", s.mean_time_between_failures);
    field.truth("keep_best", s.best);
    field.updates("keep_every", s.keep_every);
    field.truth("drop_when_busy", s.drop_when_busy);
    field.number("failures", s.failures);
    field.number("keep_k_best", s.best_count);
    field.truth("on_best", s.on_best);
    field.truth("on_exception", s.on_exception);
    field.choice("metric", s.metric, {"none", "training_loss", "evaluation_loss"});
  }
};

struct recompute_format {
  static constexpr char const* slot = "recompute";
  static auto& of(auto& c) { return c.recompute; }
  static constexpr policy_format<recompute_settings> policies[] = {{"none", recompute::none::configured},
                                                                   {"reentrant", recompute::reentrant::configured},
                                                                   {"non_reentrant", recompute::non_reentrant::configured}};
  static void fields(auto&, auto&) {}
};

struct shard_format {
  static constexpr char const* slot = "shard";
  static auto& of(auto& c) { return c.shard; }
  static constexpr policy_format<shard::settings> policies[] = {{"none", shard::none::configured},
                                                                {"replicate", shard::replicate::configured},
                                                                {"zero", {shard::kind::zero, 0}, " stage ", "stage", true}};
  static void fields(auto& s, auto& field) { field.number_between("stage", s.stage, 1, 3); }
};

struct offload_format {
  static constexpr char const* slot = "offload";
  static auto& of(auto& c) { return c.offload; }
  static constexpr policy_format<offload::settings> policies[] = {{"none", offload::none::configured},
                                                                  {"optimizer", offload::optimizer::configured}};
  static void fields(auto&, auto&) {}
};

struct attention_format {
  static constexpr char const* slot = "attention";
  static auto& of(auto& c) { return c.attention; }
  static constexpr policy_format<attention_settings> policies[] = {{"automatic", attention::automatic::configured},
                                                                   {"math", attention::math::configured},
                                                                   {"fused", attention::fused::configured}};
  static void fields(auto&, auto&) {}
};

struct rung_format {
  static constexpr policy_format<oom::rung_settings> policies[] = {
      {"halve_micro_batch", oom::halve_micro_batch::rung},
      {"enable_recompute", oom::enable_recompute<recompute::none>::rung, " recompute ", "recompute", true},
      {"offload_optimizer", oom::offload_optimizer::rung},
      {"fused_attention", oom::fused_attention::rung},
      {"quantize_base", oom::quantize_base::rung},
      {"shorten_sequence", oom::shorten_sequence<0>::rung, " tokens ", "tokens", true},
      {"give_up", oom::give_up::rung}};
  static void fields(auto& s, auto& field) {
    field.choice("recompute", s.recompute, {"none", "reentrant", "non_reentrant"});
    field.number("tokens", s.length);
  }
};

struct health_format {
  static constexpr char const* slot = "health";
  static auto& of(auto& c) { return c.health; }
  static constexpr policy_format<health::settings> policies[] = {
      {"off", health::off::configured},
      {"sft", health::sft::configured},
      {"grpo", health::grpo::configured},
      {"ebft", health::ebft::configured},
      {"watch", health::watch<>::configured, " alarms ", "alarms", true}};
  static void fields(auto& s, auto& field) { field.number_between("alarms", s.alarms, 0, 1000); }
};

struct determinism_format {
  static constexpr char const* slot = "determinism";
  static auto& of(auto& c) { return c.determinism; }
  static constexpr policy_format<determinism::settings> policies[] = {
      {"off", determinism::off::configured},
      {"seeded", determinism::seeded<0>::configured, " seed ", "seed", true},
      {"strict", determinism::strict<0>::configured, " seed ", "seed", true}};
  static void fields(auto& s, auto& field) { field.number("seed", s.seed); }
};

struct objective_format {
  static constexpr char const* slot = "objective";
  static auto& of(auto& c) { return c.objective; }
  static constexpr policy_format<objective::settings> policies[] = {
      {"supervised", objective::supervised::configured},
      {"grpo", objective::grpo<0>::configured, " group ", "group", true},
      {"ebft", objective::ebft<0>::configured, " group ", "group", true}};
  static void fields(auto& s, auto& field) { field.number("group", s.group); }
};

struct ema_format {
  static constexpr char const* slot = "ema";
  static auto& of(auto& c) { return c.ema; }
  static constexpr policy_format<ema_settings> policies[] = {{"ema", {.kept = true}, "*", "decay"}};
  static void fields(auto& s, auto& field) {
    field.number("decay", s.decay);
    field.truth("buffers", s.buffers);
  }
};

struct evaluation_format {
  static constexpr char const* slot = "evaluation";
  static auto& of(auto& c) { return c.evaluation; }
  static constexpr policy_format<evaluation::settings> policies[] = {
      {"none", evaluation::none::configured},
      {"every", {.kind = evaluation::kind::every}, "*", "interval", true},
      {"every_epochs", {.kind = evaluation::kind::every_epochs}, "*", "interval", true}};
  static void fields(auto& s, auto& field) {
    if (s.kind == evaluation::kind::every_epochs) {
      field.epochs("interval", s.interval);
    } else {
      field.updates("interval", s.interval);
    }
    field.number("batches", s.batches);
    field.number("early_stop", s.early_stop);
    field.number("min_delta", s.min_delta);
    field.updates("not_before", s.not_before);
    field.optional_number("stop_at", s.stop_at, s.has_stop_at);
    field.truth("stop_on_nonfinite", s.stop_on_nonfinite);
    field.truth("larger_is_better", s.larger);
    field.truth("averaged", s.averaged);
    field.name("monitor", s.monitor.letters);
  }
};

struct profile_format {
  static constexpr char const* slot = "profile";
  static auto& of(auto& c) { return c.profile; }
  static constexpr policy_format<profile::settings> policies[] = {
      {"off", profile::off::configured}, {"every", {.kind = profile::kind::every}, "*", "period", true}};
  static void fields(auto& s, auto& field) {
    field.updates("period", s.period);
    field.updates("warmup", s.warmup);
    field.updates("active", s.active);
  }
};

struct timeout_format {
  static constexpr char const* slot = "timeout";
  static auto& of(auto& c) { return c.timeout; }
  static constexpr policy_format<timeout::settings> policies[] = {{"timeout", timeout::none::configured, "*"}};
  static void fields(auto& s, auto& field) {
    field.seconds("soft", s.soft);
    field.seconds("hard", s.hard);
    field.seconds("collective", s.collective);
    field.seconds("first_update", s.first_update);
    field.seconds("heartbeat_interval", s.heartbeat_interval);
    field.seconds("heartbeat_limit", s.heartbeat_limit);
    field.seconds("grace", s.grace);
    field.seconds("force_exit", s.force_exit);
    field.seconds("longest_update", s.longest_update);
    field.seconds("longest_save", s.longest_save);
  }
};

struct model_format {
  static constexpr char const* slot = "model";
  static auto& of(auto& c) { return c.model; }
  static constexpr policy_format<model::settings> policies[] = {{"model", model::all_trainable::configured, "*"}};
  static void fields(auto& s, auto& field) {
    field.truth("partly_frozen", s.partly_frozen);
    field.truth("adapters", s.adapters);
    // As keel::model::adapters: what they adapt is frozen.
    s.partly_frozen |= s.adapters;
    field.truth("batch_norm", s.batch_norm);
    field.truth("dropout", s.dropout);
    field.truth("tied_weights", s.tied_weights);
    field.truth("routing", s.routing);
    field.truth("inner_gradients", s.inner_gradients);
    field.truth("half_parameters", s.half_parameters);
    field.truth("bfloat16_parameters", s.bfloat16_parameters);
    field.truth("sequence_boundaries", s.sequence_boundaries);
    field.truth("inputs_require_grad", s.inputs_require_grad);
  }
};

struct optimizer_format {
  static constexpr char const* slot = "optimizer";
  static auto& of(auto& c) { return c.optimizer; }
  static constexpr policy_format<optimizer::settings> policies[] = {{"optimizer", optimizer::usual::configured, "*"}};
  static void fields(auto& s, auto& field) {
    field.truth("closure", s.closure);
    field.truth("unscales", s.unscales);
    field.truth("whole_tensors", s.whole_tensors);
    field.truth("device_only", s.device_only);
    field.truth("state_on_host", s.state_on_host);
  }
};

struct data_format {
  static constexpr char const* slot = "data";
  static auto& of(auto& c) { return c.data; }
  static constexpr policy_format<data::settings> policies[] = {{"data", data::usual::configured, "*"}};
  static void fields(auto& s, auto& field) {
    field.truth("ragged", s.ragged);
    field.truth("token_weighted", s.token_weighted);
    field.truth("packed", s.packed);
    field.truth("grouped", s.grouped);
    field.truth("endless", s.endless);
    field.truth("finite", s.finite);
    field.truth("drops_last", s.drops_last);
    field.truth("single_pass", s.single_pass);
    field.number("rows", s.rows);
  }
};

struct device_format {
  static constexpr char const* slot = "device";
  static auto& of(auto& c) { return c.device; }
  static constexpr policy_format<device::settings> policies[] = {
      {"any", device::any::configured}, {"cpu", device::cpu::configured}, {"cuda", device::cuda::configured, "*"}};
  static void fields(auto& s, auto& field) {
    field.truth("graph_captured", s.graph_captured);
    field.truth("device_assert", s.device_assert);
  }
};

struct world_format {
  static constexpr char const* slot = "world";
  static auto& of(auto& c) { return c.world; }
  static constexpr policy_format<world::settings> policies[] = {{"any", world::any::configured},
                                                                {"size", {true, 0}, " ranks ", "ranks", true}};
  static void fields(auto& s, auto& field) { field.number("ranks", s.ranks); }
};

/// Every slot but oom, whose ladder is a list, in the order of keel::slot.
using slot_formats =
    std::tuple<precision_format, loss_scale_format, accumulate_format, clip_format, nonfinite_format, spike_format,
               schedule_format, checkpoint_format, recompute_format, shard_format, offload_format, attention_format,
               health_format, determinism_format, objective_format, ema_format, evaluation_format, profile_format,
               timeout_format, model_format, optimizer_format, data_format, device_format, world_format>;

}  // namespace keel::detail
