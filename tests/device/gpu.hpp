// What the tests on a GPU share. Without one, every case is skipped and says so.
#pragma once

#include <ATen/Context.h>
#ifdef KEEL_TEST_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#endif

#include "../transformer.hpp"

namespace keel_test {

inline bool skipped_without_a_gpu() {
#ifdef KEEL_TEST_CUDA
  if (at::hasCUDA()) return false;
#endif
  WARN("SKIPPED: there is no GPU");
  return true;
}

inline pair_batch on_gpu(pair_batch const& batch) { return {batch.first.to(at::kCUDA), batch.second.to(at::kCUDA)}; }

inline std::shared_ptr<small_module> make_small_on_gpu(std::uint64_t seed = 1, double dropout = 0.0) {
  auto const model = make_small(seed, dropout);
  model->to(at::kCUDA);
  keel::libtorch::seed_random(at::kCUDA, seed);
  return model;
}

inline std::vector<at::Tensor> on_cpu(std::vector<at::Tensor> const& tensors) {
  std::vector<at::Tensor> copies;
  for (at::Tensor const& one : tensors) copies.push_back(one.detach().to(at::kCPU, at::kDouble));
  return copies;
}

/// The largest difference of any two elements.
inline double distance(std::vector<at::Tensor> const& a, std::vector<at::Tensor> const& b) {
  REQUIRE(a.size() == b.size());
  double most = 0.0;
  auto const x = on_cpu(a);
  auto const y = on_cpu(b);
  for (std::size_t i = 0; i < x.size(); ++i) most = std::max(most, (x[i] - y[i]).abs().max().item<double>());
  return most;
}

/// Counts how often the host waits for the device, by LibTorch's own account, for as long as it lives.
class waits_counted {
 public:
#ifdef KEEL_TEST_CUDA
  waits_counted() : before_(c10::WarningUtils::get_warning_handler()) {
    c10::WarningUtils::set_warning_handler(&counter_);
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_WARN);
  }
  ~waits_counted() {
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
    c10::WarningUtils::set_warning_handler(before_);
  }
#else
  waits_counted() = default;
#endif
  waits_counted(waits_counted const&) = delete;
  waits_counted& operator=(waits_counted const&) = delete;

#ifdef KEEL_TEST_CUDA
  int count() const { return counter_.count; }

 private:
  struct counter : c10::WarningHandler {
    void process(c10::Warning const& warning) override { count += warning.msg().find("synchronizing") != std::string::npos; }
    int count = 0;
  };
  counter counter_;
  c10::WarningHandler* before_;
#else
  int count() const { return 0; }
#endif
};

/// Leaves this process so many bytes of the GPU, beside what it holds already, for as long as it lives.
class gpu_limited_to {
 public:
#ifdef KEEL_TEST_CUDA
  explicit gpu_limited_to(std::int64_t more) {
    c10::cuda::CUDACachingAllocator::emptyCache();
    auto const held = keel::memory::statistics_of(at::kCUDA)->reserved;
    limit(static_cast<double>(held + more) / total());
  }
  ~gpu_limited_to() { limit(1.0); }
#else
  explicit gpu_limited_to(std::int64_t) {}
#endif
  gpu_limited_to(gpu_limited_to const&) = delete;
  gpu_limited_to& operator=(gpu_limited_to const&) = delete;

 private:
#ifdef KEEL_TEST_CUDA
  static void limit(double fraction) { c10::cuda::CUDACachingAllocator::setMemoryFraction(fraction, 0); }
  static double total() {
    std::size_t free = 0;
    std::size_t all = 0;
    REQUIRE(cudaMemGetInfo(&free, &all) == cudaSuccess);
    return static_cast<double>(all);
  }
#endif
};

}  // namespace keel_test
