// The commands of the program keel. Each prints its findings and returns the exit status listed in the program's help. Throws keel::error
// for input that cannot be read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <keel/diagnose/plan.hpp>
#include <string>
#include <vector>

namespace keel::tools {

// Commands without LibTorch, which read the record of a run.

/// Returns 0. `output`: the page to write, which is replaced if it exists.
int report(std::vector<std::filesystem::path> const& run_directories, std::filesystem::path const& output);
/// Returns 0 if healthy, 1 if in trouble, 3 if there is not enough data, 4 if the run did not end. If `seconds` is above 0, repeats at this
/// interval until the run is in trouble.
int triage(std::filesystem::path const& run_directory, double seconds);
/// Returns 0 if there are matches, 1 if there are none.
int explain(std::string const& words);
/// Prints what runs on so many ranks take. Returns 0 if one of them fits into the memory of its ranks, 1 if none does.
int plan(plan_inputs const& inputs, std::vector<std::int64_t> const& ranks);
/// Returns 0 if all recipes are valid, 1 if one breaks a rule, 2 if a file is not a recipe.
int check(std::vector<std::filesystem::path> const& recipes);

// Commands with LibTorch.

/// Measures this machine as a run uses it, and, started by a launcher, the links among its ranks. `directory`: where runs are saved.
/// `ranks`: how many ranks to try on this machine without a launcher. Returns 0 if all is well, 1 if something is slow or wrong.
int check_machine(std::filesystem::path const& directory, int ranks);
/// Returns 0 if the records are equal, 1 if they differ.
int compare(std::filesystem::path const& run_a, std::filesystem::path const& run_b);
/// Prints the memory of parameters, gradients and optimizer state. `weights`: a safetensors file, a checkpoint, or a run directory for
/// its newest. Tensors whose names begin with one of `frozen` are not trained. Returns 0.
int estimate(std::filesystem::path const& recipe, std::filesystem::path const& weights, std::vector<std::string> const& frozen,
             int ranks, int state_per_parameter);
/// A path is a checkpoint, or a run directory with checkpoints. Returns 0 if all are intact, 1 if one is damaged.
int verify_checkpoints(std::vector<std::filesystem::path> const& paths);
int show_checkpoint(std::filesystem::path const& path);
/// Returns 0 if the checkpoints are equal, 1 if they differ.
int diff_checkpoints(std::filesystem::path const& first, std::filesystem::path const& second);
/// Writes the weights of a checkpoint, or of a run directory's newest or best one, as one safetensors file. Returns 0.
int merge_checkpoint(std::filesystem::path const& from, std::filesystem::path const& file, bool best, bool averaged);

}  // namespace keel::tools
