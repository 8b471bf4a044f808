// keel::run_in_process: ranks that are threads of this process, one of which runs at a time. What they do depends on the seed alone, so
// that a run that fails fails again: for tests of programs of several ranks, and for keel's own.
//     keel::run_in_process(4, [](keel::world_of_ranks world) {
//       at::Tensor mine = at::full({1}, world.rank());
//       keel::all_reduce(world, mine);
//     });
// A rank runs until it waits in a collective; which one goes on then is drawn. LibTorch's default CPU generator is each rank's own and
// begins for all of them as it is; it is put back at the end. A rank that never comes is known at once, because no other can run: no
// clock is asked. Sums are made in the order of the ranks.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <keel/collective/world_of_ranks.hpp>
#include <vector>

namespace keel::inline KEEL_MODE {

/// What happens to a rank of a test where it would begin its collective of this number, counted from 1.
struct rank_fault {
  /// How the rank fails.
  enum class kind : unsigned char {
    kill,  ///< its thread ends, as a killed process does, without a word
    hang   ///< it never comes; it ends when the others have
  };
  int rank = 0;                        ///< that fails
  std::int64_t collective = 1;         ///< before which it fails, from 1
  rank_fault::kind what = kind::kill;  ///< how it fails
};

/// The order in which ranks run, and their faults.
struct in_process_options {
  std::uint64_t seed = 1;               ///< of the order in which ranks run
  std::vector<rank_fault> faults = {};  ///< what fails, for tests of failures
};

/// What each rank threw; null for one that returned, or was killed.
std::vector<std::exception_ptr> try_in_process(int ranks, std::function<void(world_of_ranks)> const& body,
                                               in_process_options const& options = {});

/// The same, and throws what the first rank threw that did so by itself, or else the first. Throws error (E12) for less than one rank.
void run_in_process(int ranks, std::function<void(world_of_ranks)> const& body, in_process_options const& options = {});

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/collective/in_process.ipp>
#endif
