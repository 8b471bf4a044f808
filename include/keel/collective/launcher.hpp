// How many processes a launcher started together, by what it leaves in the environment: torchrun, mpirun of Open MPI, a PMI launcher
// such as srun or MPICH's mpiexec. Not SLURM_NTASKS, which a batch script has too, although it runs once.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace keel {

/// 1 for a process that was started alone.
inline std::int64_t launched_ranks() {
  for (char const* const name : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    char const* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): as the whole of LibTorch does
    if (value == nullptr) continue;
    std::int64_t ranks = 0;
    char const* const end = value + std::strlen(value);
    auto const read = std::from_chars(value, end, ranks);
    if (read.ec == std::errc() && read.ptr == end && ranks > 0) return ranks;
  }
  return 1;
}

}  // namespace keel
