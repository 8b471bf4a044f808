// The commands of the program keel. Each prints what it finds, and returns the exit status that the program's help names; what cannot be
// read is thrown as keel::error.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace keel::tools {

// Without LibTorch, from what a run has written.

/// 0. `output`: the page, which is replaced.
int report(std::vector<std::filesystem::path> const& run_directories, std::filesystem::path const& output);
/// 0 healthy, 1 in trouble, 3 not enough data, 4 the run did not end. `seconds` above 0: again and again until it is in trouble.
int triage(std::filesystem::path const& run_directory, double seconds);
/// 0 found, 1 nothing fits.
int explain(std::string const& words);
/// 0 all are sound, 1 one breaks a rule, 2 one is not a recipe.
int check(std::vector<std::filesystem::path> const& recipes);

// With LibTorch.

/// 0 the same, 1 they part.
int compare(std::filesystem::path const& run_a, std::filesystem::path const& run_b);
/// What parameters, gradients and the optimizer's state take in memory. `weights`: a safetensors file, a checkpoint, or a run directory for its
/// newest. Tensors whose names begin with one of `frozen` are not trained. Returns 0.
int estimate(std::filesystem::path const& recipe, std::filesystem::path const& weights, std::vector<std::string> const& frozen,
             int ranks, int state_per_parameter);
/// A path is a checkpoint, or a run directory, which stands for its checkpoints; 1: one is damaged.
int verify_checkpoints(std::vector<std::filesystem::path> const& paths);
int show_checkpoint(std::filesystem::path const& path);
/// 0 the same, 1 they differ.
int diff_checkpoints(std::filesystem::path const& first, std::filesystem::path const& second);

}  // namespace keel::tools
