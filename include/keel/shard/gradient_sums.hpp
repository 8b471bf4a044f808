// The sums of the gradients of all ranks, in buckets. Those whose gradients are complete begin while the last backward pass of an update
// still runs (Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training"): the buckets hold the parameters
// from the last one of the model to its first, as backward passes reach them, and begin in this order on all ranks.
// A sum also says which parameters have a gradient on any rank, and in the last bucket, whether a rank threw: no other collective is needed.
// On a device these flags would cost the host a wait: there they are sums of the host's, in one collective more, while the device computes.
// Left out: an order that is learned from the first backward pass. Buckets are copies, so that a gradient that a backward pass adds to after
// its bucket has begun, as one of recomputed blocks may, is noticed, and all of them are added up once more.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/core/parameters.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

class gradient_sums {
 public:
  /// Of this rank's gradients, what they are multiplied with in the sum; nothing where sums may not begin yet.
  using permission = std::function<std::optional<double>()>;

  /// `parameters` outlives this. `flags_on_host`: the host does not read what lies with the sums.
  gradient_sums(world_of_ranks world, parameter_list const& parameters, bool flags_on_host = false);
  gradient_sums(gradient_sums const&) = delete;
  gradient_sums& operator=(gradient_sums const&) = delete;
  ~gradient_sums();

  /// The list of parameters is another one. Between updates.
  void parameters_changed();
  /// Before this rank agrees with the others on an update: allocates what the sums need. Returns a checksum of which parameters take part,
  /// which is to be the same on all ranks.
  std::int64_t prepare();
  /// The last backward pass of an update follows: sums begin in it, once `may_begin` permits it.
  void begin_backward(permission may_begin);
  /// No sum may begin by itself any more.
  void forget();
  /// All ranks, once for each prepare() on which they agreed: begins what has not begun, and waits for all. False where a rank `threw`, or failed
  /// here. Otherwise
  /// the gradients are the sums, in float32 where parameters are narrower, and a parameter that has one on any rank has one.
  bool finish(double relative, bool threw);
  /// What failed on this rank itself, where finish() returned false; null: nothing.
  std::exception_ptr take_failure() { return std::exchange(failed_, nullptr); }

 private:
  struct bucket {
    std::vector<std::size_t> which;    ///< indices of parameters
    std::vector<std::int64_t> begins;  ///< of their elements in `sum`
    std::int64_t elements = 0;         ///< with what lies between them
    at::Tensor sum;
    at::Tensor flags;         ///< one for each of them, behind the elements in `sum` or on the host
    std::size_t missing = 0;  ///< parameters whose gradients are not complete
    std::unique_ptr<pending_collective> pending;
  };
  /// A gradient as its bucket has it.
  struct gradient_mark {
    void const* tensor = nullptr;
    std::uint32_t version = 0;
    bool operator==(gradient_mark const&) const = default;
  };
  class ready_hook;

  void cut();
  void ready(std::size_t parameter) noexcept;
  void begin_ready();
  void begin(std::size_t number, double relative, bool threw);
  void begin_even_if_failed(std::size_t number, double relative, bool threw);
  void fill(bucket& of, double relative, bool threw);
  void assign_sums(bucket const& of);
  gradient_mark gradient_version_of(std::size_t parameter) const;
  bool has_late_gradient(std::size_t end) const;
  at::Tensor elements_of(bucket const& of, std::size_t place) const;
  /// Of all that have begun, with their flags.
  void wait();

  world_of_ranks world_;
  bool flags_on_host_;
  at::Tensor host_flags_;  ///< of all buckets
  parameter_list const& parameters_;
  std::vector<bucket> buckets_;
  std::vector<std::size_t> bucket_index_;  ///< of each parameter
  std::vector<bool> takes_part_;           ///< requires grad
  std::vector<bool> is_ready_;
  std::vector<gradient_mark> gradient_marks_;
  // Autograd holds what accumulates a gradient weakly: the hook is there for as long as these are.
  std::vector<std::pair<decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor const&>())), std::uintptr_t>>
      hooks_;
  /// Backward passes of several devices run in several threads.
  std::mutex mutex_;
  permission may_begin_;  ///< empty: no backward pass is watched
  std::size_t begun_ = 0;
  std::exception_ptr failed_;           ///< in a backward pass, which it does not end
  bool has_failed_collective_ = false;  ///< in a collective
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/shard/gradient_sums.ipp>
#endif
