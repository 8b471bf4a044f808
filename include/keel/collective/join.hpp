// keel::join: the rendezvous of the processes that a launcher started.
//     keel::world_of_ranks world = keel::join();            torchrun, mpirun, srun, or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
// A process that was started alone gets a world of size 1; no socket is opened. Several processes rendezvous at MASTER_ADDR and communicate
// through Gloo, which is part of LibTorch. Its headers are in Debian's libgloo-dev. In a program that was compiled without them, join()
// throws E24 if there are several ranks.
#pragma once

#include <chrono>
#include <keel/collective/launch.hpp>
#include <keel/collective/world_of_ranks.hpp>

namespace keel::inline KEEL_MODE {

/// Options of join().
struct join_options {
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< for the rendezvous, and for each collective
};

/// Connects this process to the other ranks and returns their world. Collective: all ranks must call it. Logs on stderr which ranks it
/// waits for, after five seconds and then once a minute. Throws world_error (E24) within the timeout: if nothing listens at the address, if
/// ranks are missing (with their numbers), or if ranks differ in world size, LibTorch or keel version (with both values).
world_of_ranks join(launch_info const& how = read_launch_environment(), join_options const& options = {});

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/collective/join.ipp>
#endif
