// Prints a recipe: one line a slot, in the words that were typed, with every number in full. Two configurations with the
// same lines are the same run, which is what a checkpoint compares.
#pragma once

#include <charconv>
#include <keel/recipe/config_of.hpp>

namespace keel {

/// A short text in place, so that printing a recipe costs no string and no stream header.
template <int Capacity>
class text {
 public:
  constexpr text& operator<<(char const* words) {
    while (*words != '\0') put(*words++);
    return *this;
  }
  text& operator<<(long long number) { return append_number(number); }
  text& operator<<(unsigned long long number) { return append_number(number); }
  text& operator<<(int number) { return append_number(number); }
  /// The shortest digits that read back as the same number.
  text& operator<<(double number) { return append_number(number); }

  constexpr void pad_to(int column) {
    while (size_ < column) put(' ');
  }
  constexpr char const* c_str() const { return data_; }
  constexpr int size() const { return size_; }
  template <class Stream>
  requires requires(Stream& stream, char const* words, int size) { stream.write(words, size); }
  friend Stream& operator<<(Stream& stream, text const& self) {
    stream.write(self.data_, self.size_);
    return stream;
  }

 private:
  constexpr void put(char letter) {
    if (size_ < Capacity) data_[size_++] = letter;
  }
  template <class Number>
  text& append_number(Number number) {
    char digits[32];
    auto const end = std::to_chars(digits, digits + sizeof digits - 1, number).ptr;
    *end = '\0';
    return *this << digits;
  }

  int size_ = 0;
  char data_[Capacity + 1] = {};
};

using slot_text = text<512>;
using recipe_text = text<4096>;

namespace detail {

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
             << s.backoff << ", floor " << s.floor << (s.raise_at_floor ? ", raise at floor" : ", continue at floor");
}

inline slot_text describe_accumulate(config const& c) {
  slot_text out;
  out << c.accumulate.count;
  if (c.accumulate.micro_batch > 0) out << ", micro_batch " << c.accumulate.micro_batch;
  if (c.accumulate.global_batch > 0) out << ", global_batch " << c.accumulate.global_batch;
  return out;
}

inline slot_text describe_clip(config const& c) {
  static constexpr char const* names[] = {"none", "global_norm ", "value ", "adaptive ", "custom "};
  slot_text out;
  out << name(names, c.clip.kind);
  if (c.clip.kind != clip::kind::none) out << c.clip.limit;
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

inline slot_text describe_spike(config const& c) {
  static constexpr char const* names[] = {"ignore", "skip", "rollback"};
  slot_text out;
  out << name(names, c.spike.kind);
  if (c.spike.kind != spike::kind::ignore) out << ", zscore " << c.spike.zscore << ", window " << c.spike.window;
  return out;
}

inline slot_text describe_schedule(config const& c) {
  static constexpr char const* names[] = {"constant", "linear", "cosine", "warmup_stable_decay", "custom"};
  auto const& s = c.schedule;
  slot_text out;
  out << name(names, s.kind);
  if (s.warmup != 0) out << ", warmup " << s.warmup << " steps";
  if (s.warmup_ratio != 0.0) out << ", warmup_ratio " << s.warmup_ratio;
  if (s.total != 0) out << ", total " << s.total << " steps";
  if (s.decay != 0) out << ", decay " << s.decay << " steps";
  if (s.min_ratio != 0.0) out << ", min_ratio " << s.min_ratio;
  if (s.min_lr != 0.0) out << ", min_lr " << s.min_lr;
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
    case checkpoint::kind::young_daly:
      out << "young_daly, mean time between failures " << s.mean_time_between_failures << " s";
      break;
  }
  return out << ", keep " << s.keep << (s.asynchronous ? ", asynchronous" : "");
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

inline slot_text describe_ema(config const& c) {
  slot_text out;
  if (c.ema.decay == 0.0) return out << "none";
  return out << c.ema.decay;
}

}  // namespace detail

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
  visit("attention", slot_text{} << (c.attention.kind == attention_kind::math ? "math" : "fused"));
  visit("oom", detail::describe_oom(c));
  visit("health", detail::describe_health(c));
  visit("determinism", detail::describe_determinism(c));
  visit("objective", detail::describe_objective(c));
  visit("ema", detail::describe_ema(c));
  visit("model", slot_text{} << (c.model.partly_frozen ? "partly_frozen" : "all_trainable"));
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
