// Groups tensors into buckets, each of which is sent in one collective.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <keel/shard/bucket_bytes.hpp>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// The dtype in which a parameter's gradients are summed.
inline at::ScalarType sum_dtype(at::Tensor const& parameter) {
  auto const own = parameter.scalar_type();
  return own == at::kHalf || own == at::kBFloat16 ? at::kFloat : own;
}

/// Splits the indices `which` into buckets of consecutive ones and calls `use(bucket)` for each. The tensors `tensor_of(index)` of a bucket
/// share dtype and device, and have at most `most` bytes in total, unless the bucket has only one.
template <class TensorOf, class Use>
void for_each_bucket(std::vector<std::size_t> const& which, TensorOf const& tensor_of, Use const& use,
                     std::int64_t most = bucket_bytes) {
  std::vector<std::size_t> bucket;
  std::int64_t bytes = 0;
  for (std::size_t const i : which) {
    at::Tensor const& one = tensor_of(i);
    auto const more = static_cast<std::int64_t>(one.nbytes());
    bool const fits = bucket.empty() || (tensor_of(bucket.front()).scalar_type() == one.scalar_type() &&
                                         tensor_of(bucket.front()).device() == one.device() && bytes + more <= most);
    if (!fits) {
      use(bucket);
      bucket.clear();
      bytes = 0;
    }
    bucket.push_back(i);
    bytes += more;
  }
  if (!bucket.empty()) use(bucket);
}

}  // namespace keel::detail::inline KEEL_MODE
