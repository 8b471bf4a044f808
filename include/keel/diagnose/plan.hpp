// keel plan: time, memory and waste of a run on many ranks, before the ranks are rented. Computed from a few measured numbers:
//     model      parameters, bytes of each, the largest keel::unit, activations of a micro-batch
//     machine    seconds of a micro-batch and of an optimizer step on one rank; keel doctor measures the link and the disk
//     failures   mean time between failures of one rank, and seconds until a failed run trains again
// Each rank trains the same number of rows whatever the number of ranks (weak scaling).
//
// Method. n ranks gather S bytes in a ring, or scatter them in pairs, in (n - 1) latency + (n - 1)/n S / bandwidth, and all-reduce them in
// twice that (Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in MPICH", sections 4.1 to 4.3). keel
// sends them in buckets (shard/bucket_bytes.hpp) or units, each of which costs the latency; NCCL may have trees, which cost less.
// A backward pass is two thirds of a micro-batch, and hides the communication that `overlap` allows. A run of keel sends
//     replicate    all gradients once an update, during its last backward pass
//     zero<1>      the same; then gathers the parameters, which nothing hides
//     zero<2>      gradients reduce-scattered during each backward pass; then gathers the parameters
//     zero<3>      gathers the parameters for each forward and each backward pass, and reduce-scatters as zero<2>
// Memory is that of Rajbhandari et al. 2020, "ZeRO", section 3, with the gradients' sums in fp32, four buckets under zero<2> and zero<3>, and the
// largest unit and the buffers of two gathers under zero<3>. Failures
// are exponential, and the interval and the time lost are Daly's (2006, "A higher order estimate of the optimum checkpoint interval for restart
// dumps", equations 20 and 37). Left out: stragglers, shared links, pipelines, and saves that overlap training.
#pragma once

#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// What keel plan computes with. Times in seconds, sizes in bytes.
struct plan_inputs {
  double parameters = 0.0;       ///< number
  double unit_parameters = 0.0;  ///< number in the largest keel::unit; 0: an eighth of all
  double parameter_bytes = 4.0;  ///< of one parameter, and of its gradient: 2 for bf16
  double state_bytes =
      8.0;  ///< of the optimizer for one parameter: 8 for Adam, 12 for Adam with master copies of bf16 parameters
  double activations = 0.0;          ///< of a micro-batch
  double micro_batch_seconds = 0.0;  ///< forward and backward pass on one rank, while all ranks of its host compute
  double optimizer_seconds = 0.0;    ///< of an update of all parameters on one rank
  std::int64_t micro_batches = 1;    ///< in an update: those of keel::accumulate
  double memory = 0.0;               ///< of a rank; 0: not limited
  double latency = 5e-6;             ///< of a message between two ranks
  double bandwidth = 25e9;           ///< bytes a second that a rank sends while all do, within a host and between hosts
  double network_bandwidth = 0.0;    ///< the same between hosts; 0: as `bandwidth`
  std::int64_t ranks_per_host = 8;   ///< ranks that share `bandwidth` rather than `network_bandwidth`
  /// Part of the communication that can proceed while a rank computes: 0 if it takes the rank's only core, (k - 1)/k if k ranks share a core,
  /// which then computes for another one.
  double overlap = 1.0;
  double disk_bandwidth = 1e9;     ///< bytes a second that a rank writes
  double storage_bandwidth = 0.0;  ///< bytes a second that all ranks write together; 0: not limited
  double failure_seconds = 0.0;    ///< mean time between failures of one rank; 0: it never fails
  double restart_seconds = 300.0;  ///< from a failure until the run trains again
};

/// One number of ranks under one stage of keel::shard: 0 is replicate.
struct planned_run {
  std::int64_t ranks = 1;              ///< number
  int stage = 0;                       ///< of ZeRO; 0 is replicate
  double update_seconds = 0.0;         ///< of an update, without saves and failures
  double communication_seconds = 0.0;  ///< of an update, not hidden by computing
  double memory = 0.0;                 ///< of a rank
  bool fits = true;                    ///< into the memory of a rank
  double save_seconds = 0.0;           ///< of a save, in which no rank trains
  double save_interval = 0.0;          ///< seconds of training between two saves; 0: the run never fails
  double waste = 0.0;  ///< part of the time that saves, lost updates and restarts take: 1 if no update is ever completed
  /// Micro-batches a second of all ranks, waste included.
  double micro_batches_per_second = 0.0;
};

/// Throws error (E12) for a number that is not finite or has a value that cannot be planned with, and names it.
planned_run plan_run(plan_inputs const& inputs, std::int64_t ranks, int stage);

/// Returns a table of all stages for each number of ranks, the fastest that fits marked, the policies to type for it, and the method.
std::string describe_plan(plan_inputs const& inputs, std::vector<std::int64_t> const& ranks);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/plan.ipp>
#endif
