// Random configurations for sweeps: every field takes values from both sides of every threshold that a rule asks about.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <keel/recipe.hpp>
#include <limits>
#include <random>

namespace keel_test {

class random_config {
 public:
  explicit random_config(std::uint64_t seed) : engine_(seed) {}

  /// Each slot keeps its default with the given probability, so that a configuration breaks few rules or many.
  keel::config next(double keep) {
    keel::config c;
    auto const changed = [&] { return !chance(keep); };
    if (changed()) c.precision.kind = of({keel::precision::kind::bf16, keel::precision::kind::fp16});
    if (changed()) c.loss_scale = loss_scale();
    if (changed()) c.accumulate = accumulate();
    if (changed())
      c.clip = {of({clip::none, clip::global_norm, clip::value, clip::adaptive, clip::zscore, clip::custom}),
                of({-1.0, 0.0, 1.0, std::numeric_limits<double>::infinity()}), chance(0.5), of({0LL, 0LL, 1LL, 2LL, 128LL}),
                of({-1.0, 0.0, 0.0, 1.0, 1.79e308}), of({2.0, 2.0, 1.0, keel::clip::infinity, 0.5})};
    if (changed()) c.nonfinite = nonfinite();
    if (changed())
      c.spike = {of({keel::spike::kind::skip, keel::spike::kind::rollback}), of({0.0, 6.0, 1.79e308}),
                 of({1LL, 2LL, 128LL, 2000LL}), of({0LL, 1LL, 10LL}), chance(0.7), of({0LL, 0LL, 3LL}),
                 of({0.0, 0.0, 1.0, 4.0}), of({0.0, 5.0, -1.0}), of({0.0, 100.0, std::numeric_limits<double>::infinity()})};
    if (changed()) c.schedule = schedule();
    if (changed()) c.checkpoint = checkpoint();
    if (changed()) c.recompute.kind = recompute();
    if (changed()) c.shard = shard();
    if (changed()) c.offload.kind = keel::offload::kind::optimizer;
    if (changed()) c.attention.kind = of({keel::attention_kind::math, keel::attention_kind::fused});
    if (changed()) c.oom = ladder();
    if (changed()) c.health = {of({keel::health::kind::watch, keel::health::kind::sft, keel::health::kind::grpo}), of({0, 2})};
    if (changed()) c.determinism = {keel::determinism::kind::strict, 7};
    if (changed()) c.objective = {of({objective::grpo, objective::ebft}), of({0LL, 1LL, 2LL, 4LL, 8LL, most})};
    if (changed()) c.ema = {of({-0.1, 0.0, 0.5, 0.999, 1.0}), flag(), true};
    if (changed())
      c.evaluation = {keel::evaluation::kind::every, of({0LL, 100LL, 500LL}), of({-1LL, 0LL, 10LL}), of({0LL, 3LL, -1LL}),
                      of({0.0, 0.0, 0.1, -0.1}), of({0LL, 0LL, 1000LL, -1LL}), 0.0, flag(), flag(), flag(), flag(),
                      flag() ? keel::short_name{} : keel::short_name{"accuracy"}};
    if (changed()) c.profile = {keel::profile::kind::every, of({2LL, 4LL, 100LL}), of({-1LL, 0LL, 1LL}), of({0LL, 3LL})};
    if (changed()) c.timeout = timeout();
    if (changed()) c.model = {flag(), flag(), flag(), flag(), flag(), flag(), flag(), flag(), flag(), flag(), flag()};
    if (changed()) c.optimizer = {flag(), flag(), flag(), flag(), flag()};
    if (changed()) c.data = {flag(), flag(), flag(), flag(), flag(), flag(), flag(), flag(), of({0LL, 4LL, 1000LL, -1LL})};
    if (changed()) c.device = {of({device::any, device::cpu, device::cuda}), flag(), flag()};
    if (changed()) c.world = {true, of({0LL, 1LL, 2LL, 8LL})};
    if (changed())
      c.run = {true,
               of({1LL, 2LL, 8LL, most}),
               of({0LL, 50LL, 100LL, 1000LL, most}),
               of({1e-5, 1e-3}),
               flag(),
               flag(),
               of({device::any, device::cpu, device::cuda})};
    list_itself(c, keep);
    return c;
  }

 private:
  static constexpr long long most = std::numeric_limits<long long>::max();
  using clip = keel::clip::kind;
  using device = keel::device::kind;
  using objective = keel::objective::kind;

  bool chance(double probability) { return std::uniform_real_distribution<>(0.0, 1.0)(engine_) < probability; }
  bool flag() { return chance(0.3); }
  template <class Value>
  Value of(std::initializer_list<Value> values) {
    return values.begin()[std::uniform_int_distribution<std::size_t>(0, values.size() - 1)(engine_)];
  }

  keel::loss_scale::settings loss_scale() {
    using keel::loss_scale::kind;
    keel::loss_scale::settings s;
    s.kind = of({kind::fixed, kind::dynamic, kind::dynamic});
    s.initial = of({0.0, 1.0, 1024.0, 65536.0, 1e39});
    s.growth = of({1.0, 2.0, 2.0, 1e39});
    s.backoff = of({0.0, 0.5, 0.5, 1.0});
    s.growth_interval = of({0LL, 2000LL, 2000LL});
    s.hysteresis = of({0LL, 1LL, 1LL, 2LL});
    s.floor = of({0.0, 1e-40, 1.0, 2048.0});
    s.raise_at_floor = chance(0.8);
    return s;
  }
  keel::accumulate_settings accumulate() {
    return {of({0LL, 1LL, 2LL, 4LL, most}), of({-1LL, 0LL, 1LL, 4LL, 6LL, 8LL, most}),
            of({-1LL, 0LL, 0LL, 8LL, 16LL, 32LL, most}), flag()};
  }
  keel::nonfinite::settings nonfinite() {
    using keel::nonfinite::change;
    using keel::nonfinite::kind;
    return {of({kind::raise, kind::warn, kind::skip, kind::rollback, kind::rollback}), of({0LL, 1LL, 10LL, 2000LL, most}),
            of({change::nothing, change::skip_data, change::lower_lr, change::reseed}), of({0LL, 1LL, 3LL, 100LL}),
            chance(0.7)};
  }
  keel::schedule::settings schedule() {
    using keel::schedule::kind;
    return {of({kind::constant, kind::linear, kind::cosine, kind::warmup_stable_decay, kind::one_cycle, kind::plateau,
                kind::polynomial, kind::inverse_root, kind::exponential, kind::step_decay, kind::multi_step,
                kind::warm_restarts, kind::custom}),
            of({-1LL, 0LL, 0LL, 60LL, 100LL}),
            of({0.0, 0.0, 0.1, 1.0}),
            of({0LL, 0LL, 100LL, 1000LL, -1LL}),
            of({0LL, 0LL, 40LL, -1LL}),
            of({0.0, 0.0, 0.1, 1.1}),
            of({0.0, 0.0, 1e-5, 1e-4, -1.0}),
            of({0.0, 0.0, 0.0, 0.04, 1.1}),
            of({0LL, 0LL, 1000LL}),
            of({0.0, 0.0, 0.5, 1.0}),
            of({0.0, 0.0, 0.01, 1.0}),
            of({0LL, 0LL, 0LL, 3LL, -1LL}),
            of({0LL, 0LL, 0LL, 1000LL, -1LL}),
            of({0.0, 0.0, 0.0, 2.0, std::numeric_limits<double>::infinity()}),
            of({0LL, 0LL, 0LL, 1000LL, -1LL}),
            of({0LL, 0LL, 0LL, 1LL, 2LL, -1LL}),
            of({0, 0, 0, 1, 2, 9}),
            {of({0LL, 50LL, 100LL, most}), of({100LL, 200LL})}};
  }
  keel::checkpoint::settings checkpoint() {
    using keel::checkpoint::kind;
    using keel::checkpoint::metric;
    return {of({kind::every_steps, kind::every_steps, kind::every_seconds, kind::young_daly, kind::every_epochs, kind::every_tokens}),
            of({0LL, 100LL, 250LL, 500LL, most}),
            of({0LL, 1LL, 2LL, 3LL, most}),
            flag(),
            of({0LL, 0LL, 3600LL}),
            flag(),
            of({metric::none, metric::training_loss, metric::evaluation_loss}),
            of({0LL, 0LL, 1000LL, 1250LL, -1LL}),
            flag(),
            flag(),
            of({3LL, 3LL, 1LL, 0LL})};
  }
  keel::recompute_kind recompute() { return of({keel::recompute_kind::reentrant, keel::recompute_kind::non_reentrant}); }
  keel::shard::settings shard() {
    using keel::shard::kind;
    int const stage = of({0, 1, 2, 3});
    return {stage == 0 ? kind::replicate : kind::zero, stage};
  }
  keel::oom::settings ladder() {
    namespace oom = keel::oom;
    oom::settings s{.kind = oom::kind::ladder};
    s.count = of({0, 1, 2, 3, 4, 5});
    for (int i = 0; i < s.count; ++i) {
      s.rungs[i] = of({oom::halve_micro_batch::rung, oom::halve_micro_batch::rung,
                       oom::enable_recompute<keel::recompute::reentrant>::rung,
                       oom::enable_recompute<keel::recompute::non_reentrant>::rung, oom::offload_optimizer::rung,
                       oom::fused_attention::rung, oom::quantize_base::rung, oom::shorten_sequence<512>::rung,
                       oom::shorten_sequence<256>::rung, oom::shorten_sequence<0>::rung, oom::give_up::rung});
      if (chance(0.05)) s.rungs[i].kind = oom::rung_kind::custom;
      if (chance(0.05)) s.rungs[i].keeps_effective_batch = false;
      if (chance(0.05)) s.rungs[i].agreed = false;
    }
    if (chance(0.2)) s.climbs_back = true, s.climb_back = of({-1LL, 0LL, 500LL});
    if (chance(0.05)) s.misfits = 1;
    if (s.count > 0 && chance(0.7)) s.rungs[s.count - 1] = oom::give_up::rung;
    return s;
  }
  keel::timeout::settings timeout() {
    auto const seconds = [&] { return of({0LL, 0LL, 10LL, 30LL, 60LL, 600LL, -1LL, most}); };
    return {seconds(), seconds(), seconds(), seconds(), seconds(), seconds(), seconds(), seconds(), seconds(), seconds()};
  }
  void list_itself(keel::config& c, double keep) {
    if (chance(keep)) return;
    if (chance(0.3)) c.repeated = 1U << std::uniform_int_distribution<int>(0, keel::slot_count - 1)(engine_);
    c.strangers = chance(0.1);
    c.disagreeing_options = chance(0.1);
    c.unitless_intervals = chance(0.1);
    c.unsaved_states = chance(0.1);
    c.unsound_rules = chance(0.1);
    if (chance(0.3)) {
      c.accepted_count = of({1, 2});
      for (int i = 0; i < c.accepted_count; ++i)
        c.accepted[i] = keel::rule_id(of({"B06", "O10", "A17", "P06", "H07", "A01", "Z99"}));
    }
  }

  std::mt19937_64 engine_;
};

}  // namespace keel_test
