// The slots that shape a run's result in the words in which keel 0.1 wrote them into its checkpoints: `rollback 2, lower lr,
// attempts 2`. A checkpoint of that version is compared by them.
#pragma once

#include <charconv>
#include <concepts>
#include <keel/config/config.hpp>
#include <keel/libtorch/mode.hpp>
#include <string>

namespace keel::detail::inline KEEL_MODE {

/// Words and numbers one after the other, with the shortest digits that read back.
class words {
 public:
  words& operator<<(char const* text) {
    all_ += text;
    return *this;
  }
  words& operator<<(std::integral auto number) {
    all_ += std::to_string(number);
    return *this;
  }
  words& operator<<(std::floating_point auto number) {
    char digits[32];
    all_.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
    return *this;
  }
  operator std::string() const { return all_; }

 private:
  std::string all_;
};

template <class Kind, int Size>
char const* word_of(Kind kind, char const* const (&names)[Size]) {
  return names[static_cast<int>(kind)];
}

/// Of a slot that 0.1 did not compare there are none.
template <class Slot>
std::string words_of_0_1(config const& /*value*/) {
  return "";
}

template <>
inline std::string words_of_0_1<slot::precision>(config const& c) {
  return word_of(c.precision.kind, {"fp32", "bf16", "fp16"});
}

template <>
inline std::string words_of_0_1<slot::loss_scale>(config const& c) {
  auto const& s = c.loss_scale;
  words out;
  if (s.kind == loss_scale::kind::none) return out << "none";
  if (s.kind == loss_scale::kind::fixed) return out << "fixed " << s.initial;
  return out << "dynamic, initial " << s.initial << ", growth " << s.growth << " after " << s.growth_interval << ", backoff "
             << s.backoff << " after " << s.hysteresis << ", floor " << s.floor
             << (s.raise_at_floor ? ", raise at floor" : ", continue at floor");
}

template <>
inline std::string words_of_0_1<slot::accumulate>(config const& c) {
  words out;
  out << c.accumulate.count;
  if (c.accumulate.micro_batch > 0) out << ", micro_batch " << c.accumulate.micro_batch;
  if (c.accumulate.global_batch > 0) out << ", global_batch " << c.accumulate.global_batch;
  if (c.accumulate.reduce_once) out << ", reduce_once";
  return out;
}

template <>
inline std::string words_of_0_1<slot::clip>(config const& c) {
  words out;
  out << word_of(c.clip.kind, {"none", "global_norm ", "value ", "adaptive ", "zscore ", "custom "});
  if (c.clip.kind != clip::kind::none) out << c.clip.limit;
  if (c.clip.kind == clip::kind::zscore) out << ", window " << c.clip.window;
  if (c.clip.at_most != 0.0) out << ", at_most " << c.clip.at_most;
  if (c.clip.order == clip::infinity) {
    out << ", order infinity";
  } else if (c.clip.order != 2.0) {
    out << ", order " << c.clip.order;
  }
  if (!c.clip.own.empty()) out << ", " << c.clip.own.letters;
  return out;
}

template <>
inline std::string words_of_0_1<slot::nonfinite>(config const& c) {
  auto const& n = c.nonfinite;
  words out;
  out << word_of(n.kind, {"raise", "warn ", "skip ", "rollback "});
  if (n.kind != nonfinite::kind::raise) out << n.limit;
  if (n.kind == nonfinite::kind::rollback) {
    out << ", " << word_of(n.change, {"change nothing", "skip data", "lower lr", "reseed"}) << ", attempts " << n.attempts;
  }
  if (!n.agreed) out << ", rank local";
  return out;
}

template <>
inline std::string words_of_0_1<slot::spike>(config const& c) {
  auto const& s = c.spike;
  words out;
  out << word_of(s.kind, {"ignore", "skip", "rollback"});
  if (s.kind != spike::kind::ignore) out << ", zscore " << s.zscore << ", window " << s.window << ", in a row " << s.limit;
  if (s.ratio != 0.0) out << ", ratio " << s.ratio;
  if (s.loss_above != 0.0) out << ", loss above " << s.loss_above;
  if (s.gradient_norm_above != 0.0) out << ", gradient norm above " << s.gradient_norm_above;
  if (s.attempts != 0) out << ", attempts " << s.attempts;
  if (!s.agreed) out << ", rank local";
  return out;
}

template <>
inline std::string words_of_0_1<slot::schedule>(config const& c) {
  auto const& s = c.schedule;
  words out;
  out << word_of(s.kind, {"constant", "linear", "cosine", "warmup_stable_decay", "one_cycle", "plateau", "polynomial",
                          "inverse_root", "exponential", "step_decay", "multi_step", "warm_restarts", "custom"});
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
  for (int i = 0; i < s.milestone_count && i < schedule::max_milestones; ++i) {
    out << (i == 0 ? ", milestones " : " ") << s.milestones[i];
  }
  if (s.milestone_count != 0) out << " steps";
  if (!s.own.empty()) out << ", " << s.own.letters;
  return out;
}

template <>
inline std::string words_of_0_1<slot::shard>(config const& c) {
  words out;
  out << word_of(c.shard.kind, {"none", "replicate", "zero "});
  if (c.shard.kind == shard::kind::zero) out << c.shard.stage;
  return out;
}

template <>
inline std::string words_of_0_1<slot::attention>(config const& c) {
  return word_of(c.attention.kind, {"automatic", "math", "fused"});
}

template <>
inline std::string words_of_0_1<slot::determinism>(config const& c) {
  words out;
  out << word_of(c.determinism.kind, {"off", "seeded ", "strict "});
  if (c.determinism.kind != determinism::kind::off) out << c.determinism.seed;
  return out;
}

template <>
inline std::string words_of_0_1<slot::objective>(config const& c) {
  words out;
  out << word_of(c.objective.kind, {"supervised", "grpo ", "ebft "});
  if (c.objective.kind != objective::kind::supervised) out << "group " << c.objective.group;
  return out;
}

template <>
inline std::string words_of_0_1<slot::ema>(config const& c) {
  words out;
  if (!c.ema.kept) return out << "none";
  out << c.ema.decay;
  if (c.ema.buffers) out << ", buffers";
  return out;
}

template <>
inline std::string words_of_0_1<slot::evaluation>(config const& c) {
  auto const& e = c.evaluation;
  words out;
  if (e.kind == evaluation::kind::none) return out << "none";
  out << "every " << e.interval << (e.kind == evaluation::kind::every ? " steps" : " epochs");
  if (e.batches != 0) out << ", batches " << e.batches;
  if (e.early_stop != 0) out << ", early_stop " << e.early_stop;
  if (e.min_delta != 0.0) out << ", min_delta " << e.min_delta;
  if (e.not_before != 0) out << ", not_before " << e.not_before << " steps";
  if (e.has_stop_at) out << ", stop_at " << e.stop_at;
  if (e.stop_on_nonfinite) out << ", stop_on_nonfinite";
  if (!e.monitor.empty()) out << ", monitor " << e.monitor.letters;
  if (e.larger) out << ", larger is better";
  if (e.averaged) out << ", of the average";
  return out;
}

}  // namespace keel::detail::inline KEEL_MODE
