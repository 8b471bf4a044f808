// keel::launch: what a launcher says of this process, by what it leaves in the environment.
//     torchrun            RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT; a plain environment may have the same
//     mpirun of Open MPI  OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//     mpiexec of MPICH    PMI_RANK, PMI_SIZE
//     srun                SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID
// The first that is there counts, and what stands beside it must say the same. Not where one launcher starts the other: processes of torchrun
// and mpirun inherit what srun said of their parents. SLURM_NTASKS is a batch script's too, which runs once, and is not read.
#pragma once

#include <cstdint>
#include <functional>
#include <keel/libtorch/mode.hpp>
#include <optional>
#include <string>

namespace keel::inline KEEL_MODE {

/// Which rank this process is, and where the ranks meet.
struct launch {
  int rank = 0;                        ///< of this process, from 0
  int size = 1;                        ///< ranks
  int local_rank = 0;                  ///< on this machine: which device to take
  std::optional<int> local_size = {};  ///< where the launcher says it
  std::string address = {};            ///< of the machine where the ranks meet; empty: not said
  int port = 29500;                    ///< there
  std::string run_id = {};             ///< torchrun's
  int restart = 0;                     ///< how often torchrun has started the ranks again
  bool has_external_store = false;     ///< torchrun serves the store: rank 0 is a client too
  std::string by = "no launcher";      ///< for sentences
  std::string error_file = {};         ///< where torchrun reads what a rank died of; empty: nowhere

  friend bool operator==(launch const&, launch const&) = default;
};

/// What the environment of this process says; `value_of` gives a variable's text, or null. Throws world_error (E24) that names both
/// variables where they contradict each other, and one that is not a number in its range.
launch launched();
/// The same of variables that the program gives: for tests.
launch launched(std::function<char const*(char const*)> const& value_of);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/collective/launch.ipp>
#endif
