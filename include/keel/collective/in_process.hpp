// keel::run_in_process: runs the ranks as threads of this process, one at a time, to test multi-rank programs. The schedule depends only on
// the seed, so a failure is reproducible.
//     keel::run_in_process(4, [](keel::world_of_ranks world) {
//       at::Tensor mine = at::full({1}, world.rank());
//       keel::all_reduce(world, mine);
//     });
// A rank runs until it waits in a collective; the seed then selects the next rank. Each rank has its own state of LibTorch's default CPU
// generator, initially a copy of the caller's. The caller's state is restored at the end. A deadlock is detected without a timeout, as soon
// as no rank can run. Sums are computed in rank order.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <keel/collective/world_of_ranks.hpp>
#include <vector>

namespace keel::inline KEEL_MODE {

/// A simulated failure of a rank, just before one of its collectives.
struct rank_fault {
  /// How the rank fails.
  enum class kind : unsigned char {
    kill,  ///< its thread ends without a message, as a killed process does
    hang   ///< it never reaches the collective; its thread ends after the others have
  };
  int rank = 0;                        ///< the rank that fails
  std::int64_t collective = 1;         ///< the collective before which it fails, counted from 1
  rank_fault::kind what = kind::kill;  ///< how it fails
};

/// Options of run_in_process and try_in_process.
struct in_process_options {
  std::uint64_t seed = 1;               ///< seed of the order in which ranks run
  std::vector<rank_fault> faults = {};  ///< simulated failures
};

/// Runs `body` on each rank and returns the exception of each rank; null if it returned or was killed. Throws error (E12) if `ranks` < 1.
std::vector<std::exception_ptr> try_in_process(int ranks, std::function<void(world_of_ranks)> const& body,
                                               in_process_options const& options = {});

/// Like try_in_process, but rethrows the first exception other than E25, which only reports that another rank failed. If all are E25,
/// rethrows the first one.
void run_in_process(int ranks, std::function<void(world_of_ranks)> const& body, in_process_options const& options = {});

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/collective/in_process.ipp>
#endif
