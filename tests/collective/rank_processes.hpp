// Ranks of a test that are processes: each scenario runs this program again, once a rank, in the test case of the name `which`.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "../support.hpp"

extern char** environ;

namespace keel_test {

/// Nobody listens there at this moment.
inline int free_port() {
  int const socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  REQUIRE(::bind(socket, reinterpret_cast<sockaddr*>(&address), length) == 0);
  REQUIRE(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  ::close(socket);
  return ntohs(address.sin_port);
}

struct ended_rank {
  int status = 0;
  std::string words;
  std::string said;  ///< on stderr
  double seconds = 0.0;
};

/// What became of the ranks of a scenario; one that has `stopped` itself is killed when the others have ended.
inline std::vector<ended_rank> run_ranks(std::string const& scenario, std::vector<std::map<std::string, std::string>> const& ranks,
                             int stopped = -1, std::string which = "a rank of a world") {
  scratch_directory const directory;
  std::string const port = std::to_string(free_port());
  std::vector<pid_t> processes;
  auto const began = std::chrono::steady_clock::now();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::map<std::string, std::string> variables{{"RANK", std::to_string(rank)},
                                                 {"WORLD_SIZE", std::to_string(ranks.size())},
                                                 {"MASTER_ADDR", "127.0.0.1"},
                                                 {"MASTER_PORT", port},
                                                 {"OMP_NUM_THREADS", "1"},
                                                 {"KEEL_TEST_SCENARIO", scenario},
                                                 {"KEEL_TEST_WORDS", directory / std::to_string(rank)}};
    for (auto const& [name, value] : ranks[rank]) variables[name] = value;
    std::vector<std::string> texts;
    for (char** one = environ; *one != nullptr; ++one) {
      std::string const text = *one;
      if (variables.count(text.substr(0, text.find('='))) == 0) texts.push_back(text);
    }
    for (auto const& [name, value] : variables) texts.push_back(name + "=" + value);
    std::vector<char*> environment;
    for (std::string& text : texts) environment.push_back(text.data());
    environment.push_back(nullptr);
    std::string program = "/proc/self/exe";
    char* words[] = {program.data(), which.data(), nullptr};
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    std::string const said = directory / ("said-" + std::to_string(rank));
    ::posix_spawn_file_actions_addopen(&actions, 2, said.c_str(), O_WRONLY | O_CREAT, 0600);
    pid_t process = 0;
    REQUIRE(::posix_spawn(&process, program.c_str(), &actions, nullptr, words, environment.data()) == 0);
    ::posix_spawn_file_actions_destroy(&actions);
    processes.push_back(process);
  }
  std::vector<ended_rank> all(ranks.size());
  auto const collect = [&](std::size_t rank) {
    ::waitpid(processes[rank], &all[rank].status, 0);
    all[rank].seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    all[rank].words = read_file(directory / std::to_string(rank));
    all[rank].said = read_file(directory / ("said-" + std::to_string(rank)));
  };
  // A hang is a failure of the test and not its end.
  std::atomic<bool> is_over{false};
  std::thread limit([&] {
    for (int i = 0; i < 600 && !is_over; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (is_over) return;
    for (pid_t const process : processes) ::kill(process, SIGKILL);
  });
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (static_cast<int>(rank) != stopped) collect(rank);
  }
  if (stopped >= 0) {
    ::kill(processes[static_cast<std::size_t>(stopped)], SIGKILL);
    collect(static_cast<std::size_t>(stopped));
  }
  is_over = true;
  limit.join();
  return all;
}
inline std::vector<ended_rank> run_ranks(std::string const& scenario, std::size_t count, int stopped = -1) {
  return run_ranks(scenario, std::vector<std::map<std::string, std::string>>(count), stopped);
}

inline bool has(ended_rank const& one, std::string const& part) {
  UNSCOPED_INFO(one.words << " after " << one.seconds << " s, status " << one.status);
  return one.words.find(part) != std::string::npos;
}

/// What the test case does: what `scenario(name)` returns or throws is what the rank said.
template <class Scenario>
void be_rank(Scenario const& scenario) {
  char const* const name = std::getenv("KEEL_TEST_SCENARIO");
  // Chosen by its file and not by run_ranks.
  if (name == nullptr) return;
  std::string words;
  try {
    words = scenario(name);
  } catch (std::exception const& thrown) {
    words = thrown.what();
  }
  std::ofstream(std::getenv("KEEL_TEST_WORDS")) << words;
}

}  // namespace keel_test
