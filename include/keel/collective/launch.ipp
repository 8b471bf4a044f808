// Definitions for launch.hpp.
#pragma once

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <keel/collective/launch.hpp>
#include <keel/core/error.hpp>
#include <limits>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

class environment_reader {
 public:
  explicit environment_reader(std::function<char const*(char const*)> const& value_of) : value_of_(value_of) {}

  bool has(char const* name) const { return value_of_(name) != nullptr; }
  std::string text(char const* name) const {
    char const* const value = value_of_(name);
    return value == nullptr ? "" : value;
  }
  /// Parses the variable. Throws world_error (E24) unless it is a number from `least` to `most`.
  int number(char const* name, int least, int most = std::numeric_limits<int>::max()) const {
    std::string const value = text(name);
    int found = 0;
    auto const read = std::from_chars(value.data(), value.data() + value.size(), found);
    if (read.ec != std::errc() || read.ptr != value.data() + value.size() || found < least || found > most) {
      std::string const range = most == std::numeric_limits<int>::max()
                                    ? "of at least " + std::to_string(least)
                                    : "from " + std::to_string(least) + " to " + std::to_string(most);
      throw world_error("E24", std::string(name) + " is \"" + value.substr(0, 80) + "\", but must be an integer " + range +
                                   ". Start the program with its launcher, or unset the variable.");
    }
    return found;
  }
  std::optional<int> number_if_any(char const* name, int least) const {
    return name != nullptr && has(name) ? std::optional(number(name, least)) : std::nullopt;
  }

 private:
  std::function<char const*(char const*)> const& value_of_;
};

/// The names of one launcher's variables; null if the launcher does not set that variable.
struct launcher_variable_names {
  char const* launcher;
  char const* rank;
  char const* size;
  char const* local_rank;
  char const* local_size;
};

inline constexpr launcher_variable_names launcher_variables[] = {
    {"the environment", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr},
};

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY launch_info read_launch_environment(std::function<char const*(char const*)> const& value_of) {
  detail::environment_reader const from(value_of);
  launch_info found;
  detail::launcher_variable_names const* first = nullptr;
  bool const is_torchrun = from.has("TORCHELASTIC_RUN_ID");
  auto const& environment = detail::launcher_variables[0];
  auto const& srun = detail::launcher_variables[3];
  for (detail::launcher_variable_names const& words : detail::launcher_variables) {
    if (!from.has(words.size)) {
      // RANK without WORLD_SIZE is an error only if MASTER_ADDR is set too, because a program may use RANK for its own purposes. Every
      // batch script has SLURM_PROCID.
      if (&words == &environment && from.has(words.rank) && from.has("MASTER_ADDR"))
        throw world_error("E24", "RANK is set but WORLD_SIZE is not. Set both, or start the program with torchrun.");
      continue;
    }
    bool const starts_others = &words == &srun && first != nullptr && (first != &environment || from.has(first->local_rank));
    if (first != nullptr && (is_torchrun || starts_others)) continue;
    int const size = from.number(words.size, 1);
    if (!from.has(words.rank) && size == 1) continue;
    if (!from.has(words.rank))
      throw world_error("E24", std::string(words.size) + " is " + std::to_string(size) + " but " + words.rank +
                                   " is not set. Set it, or start the program with its launcher.");
    int const rank = from.number(words.rank, 0);
    if (rank >= size)
      throw world_error("E24", std::string(words.rank) + " is " + std::to_string(rank) + " and " + words.size + " is " +
                                   std::to_string(size) + ", but ranks are numbered from 0. Correct whichever is wrong.");
    if (first == nullptr) {
      first = &words;
      found.launcher = is_torchrun ? "torchrun" : words.launcher;
      found.rank = rank;
      found.size = size;
      found.local_rank = from.number_if_any(words.local_rank, 0).value_or(0);
      found.local_size = from.number_if_any(words.local_size, 1);
      continue;
    }
    if (rank == found.rank && size == found.size) continue;
    bool const is_size = size != found.size;
    throw world_error(
        "E24", std::string(is_size ? first->size : first->rank) + " is " + std::to_string(is_size ? found.size : found.rank) +
                   " and " + (is_size ? words.size : words.rank) + " is " + std::to_string(is_size ? size : rank) +
                   ": conflicting launcher variables. Unset those of the launcher that did not start this process.");
  }
  found.address = from.text("MASTER_ADDR");
  if (from.has("MASTER_PORT")) found.port = from.number("MASTER_PORT", 1, 65535);
  if (found.address.empty() && found.local_size == found.size) found.address = "127.0.0.1";
  if (is_torchrun) {
    found.run_id = from.text("TORCHELASTIC_RUN_ID");
    found.restart = from.number_if_any("TORCHELASTIC_RESTART_COUNT", 0).value_or(0);
    found.has_external_store = from.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    found.error_file = from.text("TORCHELASTIC_ERROR_FILE");
  }
  return found;
}

KEEL_BODY launch_info read_launch_environment() {
  return read_launch_environment([](char const* name) -> char const* {
    return std::getenv(name);  // NOLINT(concurrency-mt-unsafe): LibTorch reads the environment the same way
  });
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
