// Tensors out of the data of a safetensors file whose header was found good; several at a time.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <keel/checkpoint/checksum.hpp>
#include <keel/checkpoint/in_parallel.hpp>
#include <keel/checkpoint/safetensors_header.hpp>
#include <keel/checkpoint/safetensors_writer.hpp>
#include <keel/error.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keel {

struct safetensors_content {
  tensor_map tensors;   ///< on the CPU, contiguous; an alias is the same at::Tensor
  string_map metadata;  ///< without the aliases
};

namespace detail {

/// For readers that have no checksums to compare with.
struct unchecked {
  static constexpr bool wanted = false;
  void operator()(safetensors_entry const&, std::string const&) const {}
};

/// Moves the aliases out of the metadata and gives each the tensor that it names.
inline void add_aliases(safetensors_content& content, string_map metadata, std::string const& file) {
  // All aliases are looked up among the stored tensors before one is added: an alias of an alias is not ours.
  std::vector<std::pair<std::string, at::Tensor>> aliases;
  for (auto& [key, target] : metadata) {
    if (!key.starts_with(safetensors_alias)) {
      content.metadata.emplace(key, std::move(target));
      continue;
    }
    auto name = key.substr(safetensors_alias.size());
    auto const found = content.tensors.find(target);
    if (found == content.tensors.end())
      refuse_safetensors(file,
                         "it calls " + shown_name(name) + " an alias of " + shown_name(target) + ", which it does not hold");
    if (content.tensors.contains(name) || name == "__metadata__")
      refuse_safetensors(file, "it holds " + shown_name(name) + " both as a tensor and as an alias");
    aliases.emplace_back(std::move(name), found->second);
  }
  for (auto& alias : aliases) content.tensors.insert(std::move(alias));
}

inline void require_bools(safetensors_entry const& entry, char const* bytes, std::uint64_t count, std::string const& file) {
  if (safetensors_scalar_types[entry.dtype] == at::kBool && !holds_bools(bytes, count))
    refuse_safetensors(file, "the bool tensor " + shown_name(entry.name) + " holds bytes other than 0 and 1");
}

/// `read_at(destination, count, offset)` delivers bytes of the data, on several threads at once; the header has proved that
/// there are enough. `check(entry, checksum)` is called for every tensor, and may refuse it.
template <class ReadAt, class Check = unchecked>
safetensors_content read_safetensors_data(safetensors_header header, std::string const& file, ReadAt const& read_at,
                                          Check const& check = {}) {
  safetensors_content content;
  std::vector<std::pair<safetensors_entry const*, char*>> parts;
  std::uint64_t bytes = 0;
  for (auto const& entry : header.entries) {
    auto tensor = at::empty(entry.shape, at::TensorOptions().dtype(safetensors_scalar_types[entry.dtype]).device(at::kCPU));
    parts.emplace_back(&entry, static_cast<char*>(tensor.data_ptr()));
    bytes += entry.end - entry.begin;
    content.tensors.emplace(entry.name, std::move(tensor));
  }
  // The largest first, so that no thread is left alone with one at the end.
  std::ranges::stable_sort(parts, std::ranges::greater(), [](auto const& part) { return part.first->end - part.first->begin; });
  in_parallel(parts.size(), bytes, [&](std::size_t index) {
    auto const [entry, memory] = parts[index];
    // A block is checked while it is still in the cache.
    constexpr std::uint64_t block = 256 << 10;
    std::optional<checksum> sum;
    if constexpr (Check::wanted) sum.emplace();
    for (std::uint64_t at = entry->begin; at < entry->end; at += block) {
      auto const count = static_cast<std::size_t>(std::min(block, entry->end - at));
      char* const destination = memory + (at - entry->begin);
      read_at(destination, count, at);
      require_bools(*entry, destination, count, file);
      if constexpr (Check::wanted) sum->add(destination, count);
    }
    if constexpr (Check::wanted) check(*entry, sum->digest());
  });
  add_aliases(content, std::move(header.metadata), file);
  return content;
}

}  // namespace detail
}  // namespace keel
