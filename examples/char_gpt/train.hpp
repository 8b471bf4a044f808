// One run of the example, and its arguments.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace char_gpt {

struct settings {
  std::filesystem::path text;
  std::filesystem::path run_directory;  ///< empty: a new one in runs/
  std::int64_t updates = 800;
  int threads = 0;          ///< 0: one a core
  bool faults = false;      ///< poison a batch, take memory away, kill the process
  std::int64_t memory_percent = 0;  ///< of what the run takes by itself; 0: no limit
  std::int64_t console_every = 10;
};

/// Of no other run.
std::string new_run_directory();

/// Trains, evaluates, prints both losses and a sample. Returns the process's exit code. Throws keel::error.
int train(settings const& arguments);

}  // namespace char_gpt
