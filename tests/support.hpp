// What several tests need: a small model, a directory of their own, comparisons by bits.
#pragma once

#include "prelude.hpp"

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <keel/checkpoint/snapshot.hpp>
#include <keel/keel.hpp>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

// Every test file has this one precompiled, and g++ instantiates what inline functions of it call in each of them again: the bodies are in
// support.cpp.
namespace keel_test {

/// Under a sanitizer keel's own work takes most of the time of a small update.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool is_sanitized = true;
#else
inline constexpr bool is_sanitized = false;
#endif
/// Several times slower again: a process takes seconds to end.
#ifdef __SANITIZE_THREAD__
inline constexpr bool is_thread_sanitized = true;
#else
inline constexpr bool is_thread_sanitized = false;
#endif

/// Where the small models and their batches are: KEEL_TEST_DEVICE, or the CPU.
at::Device device();

/// A directory that goes away with the test.
class scratch_directory {
 public:
  scratch_directory();
  scratch_directory(scratch_directory const&) = delete;
  scratch_directory& operator=(scratch_directory const&) = delete;
  ~scratch_directory();
  std::filesystem::path const& path() const { return path_; }
  operator std::filesystem::path() const { return path_; }
  std::filesystem::path operator/(std::string const& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

std::string read_file(std::filesystem::path const& path);
void write_file(std::filesystem::path const& path, std::string const& content);
std::vector<std::string> read_lines(std::filesystem::path const& path);

/// Of a run directory, those of this name.
std::vector<nlohmann::json> events_of(std::filesystem::path const& directory, std::string const& name);

/// The lines of metrics.jsonl without what a clock put there.
std::vector<std::string> timeless_metrics(std::filesystem::path const& run_directory);

/// Equal in every bit: NaN equals itself, and zero differs from minus zero.
bool same_bits(at::Tensor const& a, at::Tensor const& b);
bool same_bits(std::vector<at::Tensor> const& a, std::vector<at::Tensor> const& b);

std::vector<at::Tensor> copies_of(std::vector<at::Tensor> const& tensors);

/// An optimizer's options and moments as text and tensors, for comparing before and after.
struct optimizer_image {
  std::string options;
  keel::tensor_map moments;
};
optimizer_image image_of(torch::nn::Module& model, torch::optim::Optimizer& optimizer);
bool same_bits(optimizer_image const& a, optimizer_image const& b);

/// Two linear layers with dropout between them: random state matters, and it trains in microseconds.
struct small_module : torch::nn::Module {
  explicit small_module(double dropout = 0.0);
  at::Tensor forward(at::Tensor const& x) { return second(drop(at::tanh(first(x)))); }
  torch::nn::Linear first;
  torch::nn::Dropout drop;
  torch::nn::Linear second;
};

std::shared_ptr<small_module> make_small(std::uint64_t seed = 1, double dropout = 0.0);

using pair_batch = std::pair<at::Tensor, at::Tensor>;

/// Rows that depend on the seed alone and leave LibTorch's generator as it is.
pair_batch make_pair_batch(std::uint64_t seed, std::int64_t rows = 8);

inline auto mean_squared_error(std::shared_ptr<small_module> const& model) {
  return [model](pair_batch const& batch) { return at::mse_loss(model->forward(batch.first), batch.second); };
}

inline keel::trainer_options quiet(keel::trainer_options options = {}) {
  options.console = nullptr;
  return options;
}

}  // namespace keel_test
