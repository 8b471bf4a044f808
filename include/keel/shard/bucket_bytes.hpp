// Sizes of the buckets in which tensors are sent: keel plan counts collectives by them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <keel/libtorch/mode.hpp>

namespace keel::detail::inline KEEL_MODE {

/// Maximum bytes of a bucket: large enough to hide the latency of a collective, small enough that a copy of it is cheap.
inline constexpr std::int64_t bucket_bytes = 25 << 20;

/// Returns the bucket size of gradient sums for `all` bytes of parameters: several buckets to overlap with the backward pass, but none too
/// small.
inline std::int64_t sum_bucket_bytes(std::int64_t all) { return std::clamp(all / 4, std::int64_t{1} << 20, bucket_bytes); }

/// Returns the bucket size of shards for `all` bytes of parameters. A bucket is copied several times, so it is a small fraction of what a rank
/// has of them; or of all, so that many ranks do not send a large model in very many messages.
inline std::int64_t shard_bucket_bytes(std::int64_t all, int ranks) {
  return std::clamp(std::max(all / (std::int64_t{32} * ranks), all / 1024), std::int64_t{1} << 18, bucket_bytes);
}

}  // namespace keel::detail::inline KEEL_MODE
