// What launchers leave in the environment, and what contradicts itself there.
#include "../prelude.hpp"

#include <keel/collective/launch.hpp>
#include <keel/core/error.hpp>
#include <map>
#include <string>

namespace {

using variables = std::map<std::string, std::string>;

keel::launch_info launch_of(variables const& all) {
  return keel::read_launch_environment([&](char const* name) -> char const* {
    auto const found = all.find(name);
    return found == all.end() ? nullptr : found->second.c_str();
  });
}
std::string words_of(variables const& all) {
  try {
    launch_of(all);
  } catch (keel::world_error const& thrown) {
    return thrown.what();
  }
  return "";
}
bool names(std::string const& words, std::initializer_list<char const*> parts) {
  UNSCOPED_INFO(words);
  for (char const* const part : parts) {
    if (words.find(part) == std::string::npos) return false;
  }
  return words.find("[E24]") == 0;
}

variables const by_torchrun{{"RANK", "5"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"MASTER_ADDR", "node7"},
                            {"MASTER_PORT", "29400"},
                            {"TORCHELASTIC_RUN_ID", "none"},
                            {"TORCHELASTIC_RESTART_COUNT", "2"},
                            {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                            {"TORCHELASTIC_ERROR_FILE", "/tmp/error.json"}};
variables const by_mpirun{{"OMPI_COMM_WORLD_RANK", "2"},
                          {"OMPI_COMM_WORLD_SIZE", "3"},
                          {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}};
variables const by_srun{{"SLURM_PROCID", "1"},
                        {"SLURM_STEP_NUM_TASKS", "2"},
                        {"SLURM_LOCALID", "0"},
                        {"MASTER_ADDR", "node1"}};

variables with(variables all, variables const& more) {
  for (auto const& [name, value] : more) all[name] = value;
  return all;
}

}  // namespace

TEST_CASE("each launcher's words are understood, and a process that was started alone is alone") {
  CHECK(launch_of({}) == keel::launch_info{});
  CHECK(launch_of({{"RANK", "3"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}) == keel::launch_info{});
  auto const torchrun = launch_of(by_torchrun);
  CHECK(torchrun.rank == 5);
  CHECK(torchrun.size == 8);
  CHECK(torchrun.local_rank == 1);
  CHECK(torchrun.local_size == 4);
  CHECK(torchrun.address == "node7");
  CHECK(torchrun.port == 29400);
  CHECK(torchrun.restart == 2);
  CHECK(torchrun.has_external_store);
  CHECK(torchrun.launcher == "torchrun");
  CHECK(torchrun.error_file == "/tmp/error.json");
  auto const mpirun = launch_of(by_mpirun);
  CHECK(mpirun.rank == 2);
  CHECK(mpirun.size == 3);
  CHECK(mpirun.local_rank == 2);
  CHECK(mpirun.address == "127.0.0.1");
  CHECK(mpirun.launcher == "mpirun");
  auto const srun = launch_of(by_srun);
  CHECK(srun.rank == 1);
  CHECK(srun.size == 2);
  CHECK(srun.launcher == "srun");
  CHECK(launch_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}).launcher == "mpiexec");
  CHECK(launch_of({{"WORLD_SIZE", "1"}}).size == 1);
}

TEST_CASE("launchers that start one another agree, and others that contradict each other are named with both values") {
  CHECK(launch_of(with(by_torchrun, by_srun)).size == 8);
  CHECK(launch_of(with(by_mpirun, by_srun)).size == 3);
  CHECK(launch_of(with(by_srun, {{"RANK", "1"}, {"WORLD_SIZE", "2"}})).launcher == "the environment");
  CHECK(names(words_of(with(by_srun, {{"RANK", "1"}, {"WORLD_SIZE", "4"}})), {"WORLD_SIZE is 4", "SLURM_STEP_NUM_TASKS is 2"}));
  CHECK(names(words_of(with(by_mpirun, {{"RANK", "1"}, {"WORLD_SIZE", "3"}})), {"RANK is 1", "OMPI_COMM_WORLD_RANK is 2"}));
  CHECK(names(words_of(with(by_mpirun, {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}})), {"OMPI_COMM_WORLD_SIZE is 3", "PMI_SIZE is 4"}));
}

TEST_CASE("a variable that is missing, no number or out of its range is named") {
  CHECK(names(words_of({{"WORLD_SIZE", "4"}}), {"WORLD_SIZE is 4", "RANK is not set"}));
  CHECK(names(words_of({{"RANK", "1"}, {"MASTER_ADDR", "node1"}}), {"RANK is set", "WORLD_SIZE"}));
  CHECK(names(words_of({{"RANK", "4"}, {"WORLD_SIZE", "4"}}), {"RANK is 4", "WORLD_SIZE is 4"}));
  for (char const* const wrong : {"", "many", "-1", "0", "4 ", "99999999999999999999", "4.0"})
    CHECK(names(words_of({{"RANK", "0"}, {"WORLD_SIZE", wrong}}), {"WORLD_SIZE is \"", wrong}));
  CHECK(names(words_of({{"RANK", "x"}, {"WORLD_SIZE", "2"}}), {"RANK is \"x\""}));
  for (char const* const wrong : {"0", "65536", "http"})
    CHECK(names(words_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", wrong}}), {"MASTER_PORT", wrong, "from 1 to 65535"}));
}
