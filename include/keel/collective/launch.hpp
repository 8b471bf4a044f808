// keel::launch_info: this process's rank and world size, from the environment variables that its launcher sets.
//     torchrun            RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT; a plain environment may have the same
//     mpirun of Open MPI  OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//     mpiexec of MPICH    PMI_RANK, PMI_SIZE
//     srun                SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID
// The first launcher in this list whose variables are set wins; the variables of other launchers must agree with it. Exception: processes
// of torchrun and mpirun inherit the srun variables of their parents, which are ignored. SLURM_NTASKS is not read, because it is also set
// in batch scripts, which run as one process.
#pragma once

#include <cstdint>
#include <functional>
#include <keel/libtorch/mode.hpp>
#include <optional>
#include <string>

namespace keel::inline KEEL_MODE {

/// This process's rank, and the rendezvous address.
struct launch_info {
  int rank = 0;                          ///< this process's rank, from 0
  int size = 1;                          ///< number of ranks
  int local_rank = 0;                    ///< rank on this machine, from which to choose a device
  std::optional<int> local_size = {};    ///< ranks on this machine; nullopt if the launcher does not set it
  std::string address = {};              ///< host of the rendezvous store; empty: not set
  int port = 29500;                      ///< port of the rendezvous store
  std::string run_id = {};               ///< torchrun's run id; empty with other launchers
  int restart = 0;                       ///< how many times torchrun has restarted the ranks
  bool has_external_store = false;       ///< torchrun serves the store, so rank 0 is a client too
  std::string launcher = "no launcher";  ///< name of the launcher, for messages
  std::string error_file = {};           ///< file in which torchrun expects a rank's error; empty: none

  friend bool operator==(launch_info const&, launch_info const&) = default;
};

/// Reads the launcher's variables from the environment of this process. Throws world_error (E24) if variables conflict (naming both), if
/// one is missing, or if one is not a number in its range.
launch_info read_launch_environment();
/// Reads the variables from `value_of(name)`, which returns a variable's value, or null if it is not set. For tests.
launch_info read_launch_environment(std::function<char const*(char const*)> const& value_of);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/collective/launch.ipp>
#endif
