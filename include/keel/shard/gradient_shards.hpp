// Reduce-scatters gradients in buckets, for shard::zero<2> (Rajbhandari et al. 2020, stage Pos+g). Each rank keeps the sums of its shard of
// every parameter (shard_range.hpp), and adds those of further micro-batches to them. A gradient is released as soon as it was copied into
// a bucket, so whole gradients exist only in the buckets that are being sent: two at a time.
// gradient_sums.hpp decides when a bucket may be sent. A rank sums its rows in rank order.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/core/parameters.hpp>
#include <keel/shard/bucket_flags.hpp>
#include <memory>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

class gradient_shards {
 public:
  /// `parameters` must outlive this object. `flags_on_host`: flags are not sent with the buckets.
  gradient_shards(world_of_ranks world, parameter_list const& parameters, bool flags_on_host);

  /// Call before cut() after the list of parameters changed, between updates: forgets the sums.
  void parameters_changed();
  /// Sets the buckets: the indices of the parameters of each. The last one also carries `more_flags` flags.
  void cut(std::vector<std::vector<std::size_t>> const& buckets, std::size_t more_flags);
  /// Allocates what sending a micro-batch needs.
  void prepare();
  /// Waits for the bucket that still uses the buffers of this one.
  void free_buffers(std::size_t number);
  /// Moves the gradients of a bucket, times `relative`, into its free buffer; zeros if `sends_nothing`. Returns a flag for each parameter
  /// that has a gradient.
  std::vector<double> fill(std::size_t number, double relative, bool sends_nothing);
  /// Starts sending a filled bucket. Collective.
  void begin(std::size_t number);
  /// Writes the flags of a filled bucket. Allocates nothing on the host, so that running out of memory here cannot make the ranks diverge.
  void write_flags(std::size_t number, std::vector<double> const& flags);
  /// Waits for all buckets and adds this rank's shards to the sums.
  void finish();
  /// The sums of a bucket's flags over all ranks, after finish().
  std::vector<double> const& flags(std::size_t number) const { return buckets_[number].flags; }

  /// Records that a parameter has a gradient on some rank.
  void set_has_gradient(std::size_t parameter) { has_gradient_[parameter] = true; }
  /// The sum of this rank's shard, in float32 for half-precision parameters; undefined if no rank has a gradient.
  at::Tensor sum(std::size_t parameter) const { return has_gradient_[parameter] ? sums_[parameter] : at::Tensor(); }
  /// True if this rank has sent or discarded a gradient since reset().
  bool has_sent() const { return has_sent_; }
  /// Records that gradients were discarded, because the update will be skipped.
  void discarded() { has_sent_ = true; }
  /// Begins an update: forgets the sums.
  void reset();

 private:
  struct bucket {
    std::vector<std::size_t> which;
    std::int64_t row = 0;  ///< elements that are sent to a rank, without flags
    std::int64_t flag_count = 0;
    std::size_t buffers = 0;
    std::vector<double> flags;
    std::unique_ptr<pending_collective> pending;
    bool is_sent = false;
  };
  /// Byte buffers that every second bucket uses.
  struct buffer_pair {
    c10::Device device;
    std::int64_t bytes = 0;
    at::Tensor sent = {};
    at::Tensor received = {};
    std::ptrdiff_t user = -1;  ///< the bucket that is being sent; -1: none
  };

  /// A view of a buffer with a row for each rank.
  at::Tensor rows_of(bucket const& one, at::Tensor const& bytes) const;
  void complete(std::size_t number);

  world_of_ranks world_;
  parameter_list const& parameters_;
  bool flags_on_host_;
  std::vector<bucket> buckets_;
  std::vector<buffer_pair> buffers_;
  std::vector<at::Tensor> sums_;
  std::vector<bool> is_begun_;  ///< the sum has a value
  std::vector<bool> has_gradient_;
  bool has_sent_ = false;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/shard/gradient_shards.ipp>
#endif
