// keel::join: the world of the processes that a launcher started.
//     keel::world_of_ranks world = keel::join();            torchrun, mpirun, srun, or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
// A process that was started alone is a world of one, without a socket. Several meet at rank 0's address and talk by Gloo, which LibTorch
// has and whose headers are Debian's libgloo-dev: where a program was compiled without them, it says so here.
// Up to 64 of them agree by direct TCP connections, where all can connect.
#pragma once

#include <chrono>
#include <keel/collective/launch.hpp>
#include <keel/collective/world_of_ranks.hpp>

namespace keel::inline KEEL_MODE {

/// How ranks meet.
struct join_options {
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< until all have come, and for each collective
};

/// All ranks call it. Says on stderr what it waits for, after five seconds and then each minute. Throws world_error (E24) within the timeout: for an address where no rank listens, ranks that do not come, by their
/// numbers, and ranks of another size of the world, LibTorch or keel, with both values.
world_of_ranks join(launch const& how = launched(), join_options const& options = {});

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/collective/join.ipp>
#endif
