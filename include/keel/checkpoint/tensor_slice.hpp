// Tensors that are divided among ranks: each writes its slice of them into its own file of a checkpoint, and the manifest says where the
// slices are (manifest.hpp). Readers get whole tensors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <keel/core/error.hpp>
#include <keel/libtorch/mode.hpp>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// A range of a tensor's elements in memory order, which a rank has as a tensor of one dimension.
struct tensor_slice {
  std::vector<std::int64_t> sizes;    ///< of the whole tensor
  std::vector<std::int64_t> strides;  ///< of the whole tensor, whose memory is dense
  std::int64_t begin = 0;             ///< the first element
  std::int64_t count = 0;

  /// True if both are slices of the same tensor. The strides of dimensions of size 1 mean nothing.
  bool has_same_tensor(tensor_slice const& other) const {
    if (sizes != other.sizes || strides.size() != sizes.size() || other.strides.size() != sizes.size()) return false;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] > 1 && strides[i] != other.strides[i]) return false;
    }
    return true;
  }
};

/// The slices in a tensor_map, by the same names.
using slice_map = std::map<std::string, tensor_slice>;

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// The number of elements of the whole tensor; nullopt if sizes and strides are not those of dense memory.
inline std::optional<std::int64_t> count_elements(tensor_slice const& of) {
  constexpr std::size_t most_dimensions = 64;  // LibTorch's iterators reject more
  if (of.sizes.size() != of.strides.size() || of.sizes.size() > most_dimensions) return std::nullopt;
  std::vector<std::pair<std::int64_t, std::int64_t>> dimensions;
  std::int64_t elements = 1;
  for (std::size_t i = 0; i < of.sizes.size(); ++i) {
    if (of.sizes[i] < 1 || __builtin_mul_overflow(elements, of.sizes[i], &elements)) return std::nullopt;
    if (of.sizes[i] > 1) dimensions.emplace_back(of.strides[i], of.sizes[i]);
  }
  std::sort(dimensions.begin(), dimensions.end());
  std::int64_t expected = 1;
  for (auto const& [stride, size] : dimensions) {
    if (stride != expected) return std::nullopt;
    expected *= size;
  }
  return elements;
}

/// Returns what is wrong with the slices of a tensor, which must contain each element once; empty if nothing is.
inline std::string find_slice_error(std::vector<tensor_slice> slices) {
  if (slices.empty()) return "has no slices";
  auto const elements = count_elements(slices.front());
  if (!elements) return "has a shape that is not that of dense memory";
  std::sort(slices.begin(), slices.end(), [](auto const& a, auto const& b) { return a.begin < b.begin; });
  std::int64_t next = 0;
  for (tensor_slice const& one : slices) {
    if (!one.has_same_tensor(slices.front())) return "has slices of different shapes";
    if (one.count < 1 || one.begin != next || one.count > *elements - next)
      return "has slices with gaps or overlaps at element " + std::to_string(next);
    next += one.count;
  }
  return next == *elements ? ""
                           : "has " + std::to_string(next) + " of its " + std::to_string(*elements) + " elements in slices";
}

/// Throws world_error (E26): the slices of the ranks are not one tensor.
[[noreturn]] inline void throw_unequal_slices(std::string const& name, std::string const& wrong) {
  throw world_error("E26", "the ranks do not divide " + name + " alike: it " + wrong +
                               ". Freeze, add and remove the same parameters on all ranks.");
}

}  // namespace keel::detail::inline KEEL_MODE
