// keel plan: what it computes agrees with its sources, and bad numbers are named.
#include <cmath>
#include <limits>
#include <random>

#include <keel/checkpoint/cadence.hpp>
#include <keel/diagnose/plan.hpp>

#include "../support.hpp"

using namespace keel_test;

namespace {

keel::plan_inputs small() {
  return {.parameters = 1e6, .unit_parameters = 1e5, .micro_batch_seconds = 0.3, .optimizer_seconds = 0.04, .micro_batches = 2, .latency = 0.0, .bandwidth = 4e6, .overlap = 0.0};
}

bool is_near(double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b)); }

std::string message_of(keel::plan_inputs const& in, std::int64_t ranks = 2, int stage = 0) {
  try {
    keel::plan_run(in, ranks, stage);
  } catch (keel::error const& thrown) {
    return thrown.what();
  }
  return "";
}

}  // namespace

TEST_CASE("planned communication is what each stage sends, over the bandwidth") {
  // 4 MB of gradients at 4 MB/s take a second, of which 3/4 are sent by each of 4 ranks.
  auto const communication = [](int stage) { return keel::plan_run(small(), 4, stage).communication_seconds; };
  CHECK(is_near(communication(0), 2 * 0.75));
  CHECK(is_near(communication(1), 3 * 0.75));
  CHECK(is_near(communication(2), (2 + 1) * 0.75));
  CHECK(is_near(communication(3), 2 * 3 * 0.75));
  CHECK(keel::plan_run(small(), 1, 3).communication_seconds == 0.0);
  CHECK(is_near(keel::plan_run(small(), 1, 0).update_seconds, 0.64));
  CHECK(is_near(keel::plan_run(small(), 4, 1).update_seconds, 0.6 + 0.01 + 3 * 0.75));
  auto hidden = small();
  hidden.overlap = 1.0;
  hidden.bandwidth = 1e9;
  CHECK(keel::plan_run(hidden, 4, 0).communication_seconds == 0.0);
  // Nothing hides the gather after the update.
  CHECK(is_near(keel::plan_run(hidden, 4, 2).communication_seconds, 0.75 * 4e6 / 1e9));
  auto between = small();
  between.network_bandwidth = 1e6;
  between.ranks_per_host = 4;
  CHECK(is_near(keel::plan_run(between, 4, 0).communication_seconds, 2 * 0.75));
  CHECK(is_near(keel::plan_run(between, 8, 0).communication_seconds, 8 * 0.875));
  auto slow = small();
  slow.latency = 1e-3;
  // An exchange of seven messages, and four buckets of a MiB that are scattered and gathered.
  CHECK(is_near(keel::plan_run(slow, 8, 0).communication_seconds, 2 * 0.875 + 7e-3 * (1 + 2 * 4)));
  // Gradients in bf16 are sent in fp32, and parameters are not.
  auto half = small();
  half.parameter_bytes = 2.0;
  CHECK(is_near(keel::plan_run(half, 4, 1).communication_seconds, 2 * 0.75 + 0.375));
}

TEST_CASE("planned memory is that of the paper on ZeRO, and keel's sums and buffers") {
  // Figure 1 there: 7.5e9 parameters in fp16 with 12 bytes of state on 64 ranks take 120, 31.4, 16.6 and 1.9 GB. keel sums gradients in fp32:
  // beside them, or in shards of 2 bytes more, for which there are four buckets with a 1,024th of the parameters each.
  keel::plan_inputs in{.parameters = 7.5e9, .unit_parameters = 1.0, .parameter_bytes = 2.0, .state_bytes = 12.0, .micro_batch_seconds = 1.0};
  double const buckets = 4 * 2 * 0.0147, shards = 2 * 7.5 / 64;
  double const expected[] = {120.0 + 30.0, 31.4 + 30.0, 16.6 + shards + buckets, 1.9 + shards + buckets};
  for (int stage = 0; stage <= 3; ++stage) CHECK(std::abs(keel::plan_run(in, 64, stage).memory / 1e9 - expected[stage]) < 0.06);
  CHECK(is_near(keel::plan_run(in, 1, 0).memory, 120e9));
  in.memory = 20e9;
  CHECK_FALSE(keel::plan_run(in, 64, 1).fits);
  CHECK(keel::plan_run(in, 64, 2).fits);
}

TEST_CASE("the planned interval wastes the least, and the waste is that of simulated failures") {
  keel::plan_inputs in = small();
  in.overlap = 1.0;
  in.bandwidth = 1e12;
  in.disk_bandwidth = 2e5;  // a save takes a minute
  in.failure_seconds = 8 * 4000.0;
  in.restart_seconds = 30.0;
  keel::planned_run const planned = keel::plan_run(in, 8, 0);
  CHECK(is_near(planned.save_seconds, 60.0));
  CHECK(is_near(planned.save_interval, keel::daly_interval(60.0, 4000.0)));
  auto const wasted = [&](double interval) {
    std::mt19937_64 random(7);
    std::exponential_distribution<double> failure(1.0 / 4000.0);
    double trained = 0.0, time = 0.0, next = failure(random);
    while (trained < 2e8) {
      if (next >= interval + 60.0) {
        next -= interval + 60.0;
        time += interval + 60.0;
        trained += interval;
        continue;
      }
      time += next;
      // It may fail again while it restarts.
      for (next = failure(random); next < 30.0; next = failure(random)) time += next;
      time += 30.0;
      next -= 30.0;
    }
    return 1.0 - trained / time;
  };
  double const simulated = wasted(planned.save_interval);
  CHECK(std::abs(planned.waste - simulated) < 0.01);
  CHECK(simulated < wasted(planned.save_interval * 0.5));
  CHECK(simulated < wasted(planned.save_interval * 2.0));
  in.failure_seconds = 1.0;
  CHECK(keel::plan_run(in, 8, 0).waste == 1.0);
  CHECK(keel::plan_run(in, 8, 0).micro_batches_per_second == 0.0);
}

TEST_CASE("a plan names a number that it cannot use, and says what fits") {
  CHECK(message_of(small()).empty());
  auto const with = [](double keel::plan_inputs::*field, double value) {
    auto in = small();
    in.*field = value;
    return message_of(in);
  };
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  using in = keel::plan_inputs;
  for (double const bad : {nan, infinity, -1.0}) {
    for (double in::*const field : {&in::parameters, &in::unit_parameters, &in::parameter_bytes, &in::state_bytes, &in::activations, &in::micro_batch_seconds, &in::optimizer_seconds, &in::memory, &in::latency,
                                    &in::bandwidth, &in::network_bandwidth, &in::overlap, &in::disk_bandwidth, &in::storage_bandwidth, &in::failure_seconds, &in::restart_seconds})
      CHECK(with(field, bad).find("[E12] keel plan: ") == 0);
  }
  CHECK(with(&in::overlap, 1.5).find("the overlap is 1.5") != std::string::npos);
  CHECK(with(&in::unit_parameters, 2e6).find("largest unit") != std::string::npos);
  for (std::int64_t const ranks : {std::int64_t{0}, std::int64_t{1} << 32}) CHECK(message_of(small(), ranks).find("ranks") != std::string::npos);
  CHECK(with(&in::parameters, 1e19).find("parameters") != std::string::npos);
  CHECK(message_of(small(), 2, 4).find("stage") != std::string::npos);
  auto tight = small();
  tight.memory = 7.5e6;
  CHECK(keel::describe_plan(tight, {1, 4}).find("for 4 ranks: keel::shard::zero<3>; build the model with keel::shard_parameters") != std::string::npos);
  tight.memory = 1e5;
  CHECK(keel::describe_plan(tight, {1, 4}).find("Nothing fits: keel::shard::zero<3> on 4 ranks needs") != std::string::npos);
  CHECK(keel::describe_plan(tight, {}).find("Nothing fits") == std::string::npos);
}
