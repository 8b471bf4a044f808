// Bucketed all-reduce of gradients, which overlaps the last backward pass of an update (Li et al. 2020, "PyTorch Distributed: Experiences
// on Accelerating Data Parallel Training"). Buckets hold the parameters in reverse order, as backward passes reach them. All ranks start
// them in this order, each once its gradients are complete.
// Each bucket also carries flags of the parameters that have a gradient; the last one has a flag for a rank that threw. So no other
// collective is needed. Reading flags on a device would synchronize the host, so there they are summed on the host, in one more collective.
// During an update gradients are views of their buckets, as with DDP's gradient_as_bucket_view: a hook moves each there in the first backward
// pass, and later passes add to it in place. A bucket that starts releases its gradients. If a backward pass adds to one after that, as
// recomputed blocks may, this is detected and summed in a second round.
// Not supported: bucket order learned from the first backward pass.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/core/parameters.hpp>
#include <keel/shard/gradient_shards.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

class gradient_sums {
 public:
  /// Returns the factor of this rank's gradients in the sum; nullopt while sums may not start yet.
  using permission = std::function<std::optional<double>()>;

  /// What a rank keeps of the sums: all of them, as gradients of the parameters, or its shards (gradient_shards.hpp).
  enum class keeps : bool { all, shards };

  /// `parameters` must outlive this object. `flags_on_host`: flags are summed on the host, apart from the buckets.
  gradient_sums(world_of_ranks world, parameter_list const& parameters, keeps which, bool flags_on_host = false);
  gradient_sums(gradient_sums const&) = delete;
  gradient_sums& operator=(gradient_sums const&) = delete;
  ~gradient_sums();

  /// The sums of this rank's shards; null if it keeps all.
  gradient_shards* shards() { return shards_ ? &*shards_ : nullptr; }
  gradient_shards const* shards() const { return shards_ ? &*shards_ : nullptr; }
  /// Rebuilds the buckets after the list of parameters changed. Call between updates.
  void parameters_changed();
  /// Call when an update begins, without gradients: those of its backward passes are moved into the buckets.
  void begin_update();
  /// True if a gradient of this rank was sent since the update began.
  bool has_sent() const { return shards_ ? shards_->has_sent() : has_released_; }
  /// Allocates the buckets that are missing; call before the ranks agree on an update. Returns a checksum of the parameters that require gradients,
  /// which must be equal on all ranks.
  std::int64_t prepare();
  /// Call before the last backward pass of an update, which begins with `loss`: sums start during it, once `may_begin` permits it, but not
  /// from another pass that the program runs within it, whose gradients it may set aside. Undefined `loss`: from any pass.
  void begin_backward(at::Tensor const& loss, permission may_begin);
  /// Stops starting sums from gradient hooks.
  void forget();
  /// Starts the remaining sums and waits for all. Collective: all ranks must call it once per prepare() on which they agreed. Returns false
  /// if a rank `threw`, or failed here. Otherwise each gradient is replaced by the sum, in float32 for half-precision parameters; or it is
  /// released, and its shard added to shards(). A parameter with a gradient on any rank then has one on all.
  bool finish(double relative, bool threw);
  /// Returns and clears the exception of this rank after finish() returned false; null if this rank did not fail.
  std::exception_ptr take_failure() { return std::exchange(failed_, nullptr); }
  /// The exception of a hook in the present backward pass; null if there is none.
  std::exception_ptr const& failure() const { return failed_; }
  /// How often the buckets were rebuilt.
  std::int64_t cuts() const { return cuts_; }
  /// The number of the next bucket.
  std::size_t next_bucket() const { return begun_; }
  /// Starts it on a rank without a backward pass. Collective.
  void begin_next(double relative);
  /// Waits for the buckets that were started, on all ranks, when the update ends without finish(). Collective.
  void wait_for_begun();

 private:
  struct bucket {
    std::vector<std::size_t> which;    ///< indices of the parameters
    std::vector<std::int64_t> begins;  ///< offsets of their elements in `sum`
    std::int64_t elements = 0;         ///< including padding
    at::Tensor sum;
    at::Tensor flags;         ///< one per parameter, after the elements in `sum` or on the host
    std::size_t missing = 0;  ///< parameters whose gradients are not complete
    std::unique_ptr<pending_collective> pending;
  };
  class ready_hook;

  void cut();
  bool lacks_parameters() const;
  bool is_in_watched_pass() const;
  void separate_from_buckets();
  bool is_in_place(std::size_t parameter) const;
  void allocate_buckets();
  void ready(std::size_t parameter) noexcept;
  void move_into_bucket(std::size_t parameter);
  void begin_ready();
  void begin(std::size_t number, double relative, bool threw);
  void begin_even_if_failed(std::size_t number, double relative, bool threw);
  /// Returns a flag for each parameter that has a gradient.
  std::vector<double> fill(bucket& of, double relative, bool threw);
  /// Runs `call`; keeps its exception, so that finish() rethrows it.
  template <class Call>
  void note_failed_collective(Call const& call);
  std::vector<bool> flags_of(std::size_t number) const;
  void note_summed_parameters();
  void assign_sums();
  bool has_late_gradient(std::size_t end) const;
  /// A second round for gradients that were added after their bucket had started. Returns false if a rank failed. Collective.
  bool sum_late_gradients(double relative);
  /// For each device, bytes for the largest of its buckets.
  std::vector<at::Tensor> allocate_largest_buckets() const;
  bool has_global_flag(std::size_t number) const;
  void point_flags(bucket& of, at::Tensor const& sum) const;
  at::Tensor elements_of(bucket const& of, std::size_t place) const;
  /// Waits for all started sums and their flags. Collective.
  void wait();

  world_of_ranks world_;
  bool flags_on_host_;
  at::Tensor host_flags_;  ///< flags of all buckets
  parameter_list const& parameters_;
  std::optional<gradient_shards> shards_;
  std::vector<bucket> buckets_;
  struct bucket_place {
    std::size_t bucket = 0, place = 0;
  };
  std::vector<bucket_place> places_;  ///< of each parameter
  std::vector<bool> takes_part_;      ///< is in a bucket
  std::vector<bool> was_frozen_;      ///< in the last prepare()
  std::vector<bool> is_ready_;
  std::vector<bool> was_moved_;  ///< into its bucket, since begin_update()
  std::vector<bool> has_sum_;    ///< some rank has a gradient
  // Autograd holds gradient accumulators weakly: keep them alive so that the hooks stay installed.
  std::vector<std::pair<decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor const&>())), std::uintptr_t>>
      hooks_;
  /// Backward passes of several devices run in several threads.
  std::mutex mutex_;
  permission may_begin_;  ///< empty: no backward pass is watched
  /// Address of what LibTorch keeps for the watched pass, once it has begun; null if any pass is.
  std::shared_ptr<std::atomic<void const*>> watched_pass_;
  std::int64_t cuts_ = 0;
  bool moves_gradients_ = false;
  bool has_released_ = false;
  std::size_t begun_ = 0;
  std::exception_ptr failed_;           ///< thrown in a hook; the backward pass continues
  bool has_failed_collective_ = false;  ///< failed_ comes from a collective
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/shard/gradient_sums.ipp>
#endif
