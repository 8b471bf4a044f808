// Serializes named tensors as a safetensors file, and checks that they can be saved.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <keel/checkpoint/safetensors_header.hpp>
#include <keel/checkpoint/safetensors_scalar_types.hpp>
#include <keel/checkpoint/tensor_map.hpp>
#include <keel/core/error.hpp>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

inline constexpr std::string_view safetensors_alias = "alias:";

/// True if all bytes are 0 or 1. Any other value in a C++ bool is undefined behaviour, so both reader and writer reject it.
inline bool holds_bools(char const* bytes, std::uint64_t count) {
  return std::all_of(bytes, bytes + count, [](char byte) { return byte == 0 || byte == 1; });
}

/// Writes a safetensors file. The constructor makes all checks, so that nothing is written for unsuitable tensors.
class safetensors_writer {
 public:
  /// Equal for two names of one tensor.
  using identity =
      std::tuple<void const*, std::int64_t, std::vector<std::int64_t>, std::vector<std::int64_t>, at::ScalarType, bool, bool>;

  static identity identity_of(at::Tensor const& tensor) {
    return {tensor.storage().unsafeGetStorageImpl(),
            tensor.storage_offset(),
            tensor.sizes().vec(),
            tensor.strides().vec(),
            tensor.scalar_type(),
            tensor.is_conj(),
            tensor.is_neg()};
  }

  safetensors_writer(tensor_map const& tensors, string_map metadata) : tensors_(tensors) {
    for (auto const& [key, value] : metadata)
      if (key.starts_with(safetensors_alias))
        throw data_error("E05", "the metadata key " + shown_name(key) +
                                    " begins with 'alias:', which is reserved for shared tensors; rename it");
    metadata["format"] = "pt";  // transformers rejects a file without it

    std::map<identity, std::string> stored;
    for (auto const& [name, tensor] : tensors) {
      auto entry = describe(name, tensor);
      auto const [known, first] = stored.try_emplace(identity_of(tensor), name);
      if (first)
        entries_.push_back(std::move(entry));
      else
        metadata[std::string(safetensors_alias) + name] = known->second;
    }
    // Widest elements first, so that every tensor is aligned to its elements. The sort is stable: names remain ordered as in
    // the map.
    std::ranges::stable_sort(entries_, std::ranges::greater(),
                             [](auto const& entry) { return safetensors_dtypes[entry.dtype].alignment(); });
    header_ = build_safetensors_header(entries_, metadata);
  }

  std::string const& header() const { return header_; }
  /// Returns the entries in file order.
  std::vector<safetensors_entry> const& entries() const { return entries_; }
  /// Returns the size of the file in bytes.
  std::uint64_t size() const { return header_.size() + (entries_.empty() ? 0 : entries_.back().end); }

  /// Returns an entry's values, contiguous and on the CPU, as they are written. Copies only if necessary.
  at::Tensor values_of(safetensors_entry const& entry) const {
    return tensors_.at(entry.name).detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous();
  }

  template <class Sink>
  void write(Sink& sink) const {
    sink(static_cast<char const*>(header_.data()), header_.size());
    for (auto const& entry : entries_) {
      if (entry.begin == entry.end) continue;
      auto const tensor = values_of(entry);
      sink(static_cast<char const*>(tensor.data_ptr()), static_cast<std::size_t>(entry.end - entry.begin));
    }
  }

 private:
  static safetensors_entry describe(std::string const& name, at::Tensor const& tensor) {
    auto const fail = [&](std::string const& what) { throw data_error("E05", "the tensor " + shown_name(name) + " " + what); };
    if (name == "__metadata__") fail("has the name that safetensors reserves for metadata; rename it");
    if (!tensor.defined()) fail("is undefined and cannot be saved; leave it out");
    if (tensor.layout() != at::kStrided) fail("is sparse or has another layout without strides; save its to_dense()");
    if (tensor.is_meta() || !tensor.has_storage()) fail("has no memory and cannot be saved; materialize it");
    auto const type = std::ranges::find(safetensors_scalar_types, tensor.scalar_type());
    if (type == safetensors_scalar_types.end())
      fail(std::string("has the dtype ") + c10::toString(tensor.scalar_type()) + ", which keel cannot save; convert it");
    if (tensor.scalar_type() == at::kBool && tensor.view(at::kByte).gt(1).any().item<bool>())
      fail("has dtype bool and contains bytes other than 0 and 1; save it as uint8");
    safetensors_entry entry;
    entry.name = name;
    entry.dtype = static_cast<std::size_t>(type - safetensors_scalar_types.begin());
    entry.shape = tensor.sizes().vec();
    return entry;
  }

  tensor_map const& tensors_;
  std::vector<safetensors_entry> entries_;
  std::string header_;
};

}  // namespace keel::detail::inline KEEL_MODE
