// Definitions for plan.hpp.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <keel/checkpoint/cadence.hpp>
#include <keel/core/error.hpp>
#include <keel/diagnose/plan.hpp>
#include <keel/metrics/number_format.hpp>
#include <keel/shard/bucket_bytes.hpp>
#include <optional>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void require_plannable(plan_inputs const& in, std::int64_t ranks, int stage) {
  auto const fail = [](char const* name, double value, char const* due) {
    throw error("E12", std::string("keel plan: ") + name + " is " + std::to_string(value) + ", but must be " + due + ".");
  };
  std::array<std::pair<char const*, double>, 6> const positive{
      {{"the number of parameters", in.parameters},
       {"the bytes of a parameter", in.parameter_bytes},
       {"the seconds of a micro-batch", in.micro_batch_seconds},
       {"the number of micro-batches", static_cast<double>(in.micro_batches)},
       {"the bandwidth", in.bandwidth},
       {"the disk's bandwidth", in.disk_bandwidth}}};
  for (auto const& [name, value] : positive) {
    if (!(std::isfinite(value) && value > 0.0)) fail(name, value, "above 0");
  }
  std::array<std::pair<char const*, double>, 10> const others{{{"the size of the largest unit", in.unit_parameters},
                                                               {"the bytes of the optimizer's state", in.state_bytes},
                                                               {"the size of the activations", in.activations},
                                                               {"the seconds of an optimizer step", in.optimizer_seconds},
                                                               {"the memory of a rank", in.memory},
                                                               {"the latency", in.latency},
                                                               {"the network's bandwidth", in.network_bandwidth},
                                                               {"the storage's bandwidth", in.storage_bandwidth},
                                                               {"the time between failures", in.failure_seconds},
                                                               {"the time of a restart", in.restart_seconds}}};
  for (auto const& [name, value] : others) {
    if (!(std::isfinite(value) && value >= 0.0)) fail(name, value, "0 or more");
  }
  if (!(in.overlap >= 0.0 && in.overlap <= 1.0)) fail("the overlap", in.overlap, "between 0 and 1");
  if (in.unit_parameters > in.parameters) fail("the size of the largest unit", in.unit_parameters, "at most that of the model");
  if (in.ranks_per_host < 1) fail("the number of ranks of a host", static_cast<double>(in.ranks_per_host), "1 or more");
  if (ranks < 1 || ranks > (1 << 24)) fail("the number of ranks", static_cast<double>(ranks), "between 1 and 16777216");
  if (in.parameters * in.parameter_bytes > 1e18) fail("the number of parameters", in.parameters, "at most 1e18 bytes of them");
  if (stage < 0 || stage > 3) fail("the stage", stage, "0 to 3");
}

/// Times of collectives among so many ranks.
class collective_costs {
 public:
  collective_costs(plan_inputs const& in, std::int64_t ranks)
      : ranks_(static_cast<double>(ranks)),
        latency_(in.latency * static_cast<double>(ranks - 1)),
        bandwidth_(ranks > in.ranks_per_host && in.network_bandwidth > 0.0 ? std::min(in.bandwidth, in.network_bandwidth)
                                                                           : in.bandwidth) {}
  /// Of a few numbers.
  double exchange() const { return latency_; }
  /// All-gathers to `bytes`, or reduce-scatters of them, with at most `most` bytes each.
  double gather(double bytes, double most) const {
    return std::ceil(bytes / most) * latency_ + (ranks_ - 1.0) / ranks_ * bytes / bandwidth_;
  }

 private:
  double ranks_, latency_, bandwidth_;
};

/// What of some communication `seconds` of computing do not hide.
inline double exposed(plan_inputs const& in, double communication, double seconds) {
  double const hidden = std::min(in.overlap * communication, seconds);
  return communication - hidden;
}

/// The seconds in which a run trains for one second, with a save of `cost` seconds after every `interval` seconds (Daly 2006, equation 20).
inline double stretch(double interval, double cost, double restart, double mean) {
  return mean * std::exp(restart / mean) * std::expm1((interval + cost) / mean) / interval;
}

inline std::string format_duration(double seconds) {
  return seconds < 1.0      ? formatted("%.3g ms", 1e3 * seconds)
         : seconds < 120.0  ? formatted("%.3g s", seconds)
         : seconds < 7200.0 ? formatted("%.3g min", seconds / 60.0)
                            : formatted("%.3g h", seconds / 3600.0);
}

inline std::string policy_of_stage(int stage) {
  return stage == 0 ? "keel::shard::replicate" : "keel::shard::zero<" + std::to_string(stage) + ">";
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY planned_run plan_run(plan_inputs const& in, std::int64_t ranks, int stage) {
  detail::require_plannable(in, ranks, stage);
  planned_run found{.ranks = ranks, .stage = stage};
  auto const n = static_cast<double>(ranks), count = static_cast<double>(in.micro_batches);
  double const unit = (in.unit_parameters > 0.0 ? in.unit_parameters : in.parameters / 8.0) * in.parameter_bytes;
  double const parameters = in.parameters * in.parameter_bytes, state = in.parameters * in.state_bytes;
  // Gradients are summed in fp32 at least.
  double const sums = in.parameters * std::max(4.0, in.parameter_bytes);
  auto const all_bytes = static_cast<std::int64_t>(parameters);
  auto const sum_bucket = static_cast<double>(detail::sum_bucket_bytes(all_bytes));
  auto const shard_bucket = static_cast<double>(detail::shard_bucket_bytes(all_bytes, static_cast<int>(ranks)));

  found.memory = in.activations + (stage >= 3 ? parameters / n : parameters) + (stage >= 1 ? state / n : state);
  if (stage >= 2) {
    found.memory += sums / n + 4.0 * shard_bucket * sums / parameters;
  } else {
    // In fp32 the gradients are views of the sums.
    found.memory += sums + (ranks > 1 && in.parameter_bytes < 4.0 ? parameters : 0.0);
    if (ranks == 1) found.memory += parameters - sums;
  }
  if (stage >= 3 && ranks > 1) found.memory += unit * (1.0 + 2.0 * (1.0 + 1.0 / n));
  found.fits = in.memory == 0.0 || found.memory <= in.memory;

  if (ranks > 1) {
    detail::collective_costs const costs(in, ranks);
    double const forward = in.micro_batch_seconds / 3.0, backward = 2.0 * forward;
    // As many as buckets of parameters.
    double const gather = costs.gather(parameters, stage == 3 ? unit : shard_bucket);
    double const scatter = costs.gather(sums, shard_bucket * sums / parameters);
    double& sent = found.communication_seconds;
    // Ranks agree on an update; under zero<2> on each micro-batch, and under zero<3> on each pass.
    sent += costs.exchange() * (stage <= 1 ? 1.0 : stage == 2 ? count : 2.0 * count);
    if (stage <= 1) sent += detail::exposed(in, 2.0 * costs.gather(sums, sum_bucket * sums / parameters), backward);
    if (stage == 1 || stage == 2) sent += gather;
    if (stage == 2) sent += count * detail::exposed(in, scatter, backward);
    if (stage == 3) {
      // The first unit of a pass is gathered before there is anything to compute.
      double const first = costs.gather(unit, unit);
      sent += count * (2.0 * first + detail::exposed(in, gather - first, forward) +
                       detail::exposed(in, gather - first + scatter, backward));
    }
  }
  double const optimizer = stage >= 1 ? in.optimizer_seconds / n : in.optimizer_seconds;
  found.update_seconds = count * in.micro_batch_seconds + optimizer + found.communication_seconds;

  // Rank 0 writes what all ranks have; each writes its shards.
  double const whole = (stage >= 3 ? 0.0 : parameters) + (stage >= 1 ? 0.0 : state);
  double const divided = parameters + state - whole;
  found.save_seconds = (whole + divided / n) / in.disk_bandwidth;
  if (in.storage_bandwidth > 0.0)
    found.save_seconds = std::max(found.save_seconds, (parameters + state) / in.storage_bandwidth);
  if (in.failure_seconds > 0.0) {
    double const mean = in.failure_seconds / n;
    found.save_interval = std::max(daly_interval(found.save_seconds, mean), found.update_seconds);
    found.waste = 1.0 - 1.0 / detail::stretch(found.save_interval, found.save_seconds, in.restart_seconds, mean);
  }
  found.micro_batches_per_second = n * count / found.update_seconds * (1.0 - found.waste);
  return found;
}

KEEL_BODY std::string describe_plan(plan_inputs const& in, std::vector<std::int64_t> const& ranks) {
  using detail::formatted;
  std::string text = formatted("%8s  %-9s  %11s  %10s  %14s  %10s  %6s  %16s\n", "ranks", "shard", "memory", "update",
                               "communication", "save each", "waste", "micro-batches/s");
  std::optional<planned_run> best, least;
  for (std::int64_t const count : ranks) {
    std::vector<planned_run> all;
    for (int stage = 0; stage <= 3; ++stage) all.push_back(plan_run(in, count, stage));
    planned_run const* fastest = nullptr;
    for (planned_run const& one : all) {
      if (!least || one.memory < least->memory) least = one;
      if (one.fits && (fastest == nullptr || one.micro_batches_per_second > fastest->micro_batches_per_second)) fastest = &one;
    }
    for (planned_run const& one : all) {
      text +=
          formatted("%8lld  %-9s  %7.3g GiB%s  %10s  %12.1f %%  %10s  %4.1f %%  %15.4g%s\n", static_cast<long long>(one.ranks),
                    one.stage == 0 ? "replicate" : ("zero<" + std::to_string(one.stage) + ">").c_str(), one.memory / (1 << 30),
                    one.fits ? " " : "!", detail::format_duration(one.update_seconds).c_str(),
                    100.0 * one.communication_seconds / one.update_seconds,
                    one.save_interval > 0.0 ? detail::format_duration(one.save_interval).c_str() : "-", 100.0 * one.waste,
                    one.micro_batches_per_second, &one == fastest ? " *" : "");
    }
    if (fastest != nullptr && (!best || fastest->micro_batches_per_second > best->micro_batches_per_second)) best = *fastest;
  }
  text += "* the fastest that fits;  ! more memory than a rank has\n";
  if (!best && !least) return text;
  if (!best) {
    return text +
           formatted("Nothing fits: %s on %lld ranks needs %.3g GiB a rank, ", detail::policy_of_stage(least->stage).c_str(),
                     static_cast<long long>(least->ranks), least->memory / (1 << 30)) +
           (in.activations > in.memory / 2.0
                ? "most of it activations: recompute them with keel::recompute::reentrant, or halve "
                  "the micro-batch.\n"
                : "so use more ranks or smaller units.\n");
  }
  text += "for " + std::to_string(best->ranks) + " ranks: " + detail::policy_of_stage(best->stage);
  if (best->save_interval > 0.0) {
    auto const updates = std::max<std::int64_t>(1, std::llround(std::min(best->save_interval / best->update_seconds, 1e15)));
    text += ", keel::checkpoint::every<" + std::to_string(updates) + "_steps>";
  }
  if (best->stage >= 3) text += "; build the model with keel::shard_parameters";
  return text + "\nMethod and sources: keel/diagnose/plan.hpp.\n";
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
