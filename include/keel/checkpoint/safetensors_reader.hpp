// Reads tensors from the data of a safetensors file with a validated header, on several threads.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <keel/checkpoint/checksum.hpp>
#include <keel/checkpoint/for_each_in_parallel.hpp>
#include <keel/checkpoint/safetensors_header.hpp>
#include <keel/checkpoint/safetensors_scalar_types.hpp>
#include <keel/checkpoint/safetensors_writer.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// The check for readers that have no checksums to compare.
struct unchecked {
  static constexpr bool wanted = false;
  void operator()(safetensors_entry const&, std::string const&) const {}
};

/// Removes the alias entries from the metadata and returns them as pairs of alias and stored name. `holds(name)`: true if a
/// tensor of this name is stored.
template <class Holds>
std::vector<std::pair<std::string, std::string>> take_aliases(string_map& metadata, std::string const& file,
                                                              Holds const& holds) {
  // Collect all aliases before any is added: keel writes no alias of an alias, so it is rejected.
  std::vector<std::pair<std::string, std::string>> aliases;
  for (auto at = metadata.begin(); at != metadata.end();) {
    auto const& [key, target] = *at;
    if (!key.starts_with(safetensors_alias)) {
      ++at;
      continue;
    }
    auto name = key.substr(safetensors_alias.size());
    if (!holds(target))
      throw_damaged_safetensors(file, "its metadata declares " + shown_name(name) + " an alias of " + shown_name(target) +
                                          ", which the file does not contain");
    if (holds(name) || name == "__metadata__")
      throw_damaged_safetensors(file, "it contains " + shown_name(name) + " both as a tensor and as an alias");
    aliases.emplace_back(std::move(name), target);
    at = metadata.erase(at);
  }
  return aliases;
}

/// Adds each alias with the tensor that it refers to.
inline void add_aliases(safetensors_content& content, string_map metadata, std::string const& file) {
  auto const aliases = take_aliases(metadata, file, [&](std::string const& name) { return content.tensors.contains(name); });
  for (auto const& [name, target] : aliases) {
    content.tensors.emplace(name, content.tensors.at(target));
    auto const dtype = content.as_bytes.find(target);
    if (dtype != content.as_bytes.end()) content.as_bytes.emplace(name, dtype->second);
  }
  content.metadata = std::move(metadata);
}

inline constexpr char const* read_slices = "Read slices of it with keel::safetensors_file";
inline constexpr char const* read_slices_or_map =
    "Read slices of it with keel::safetensors_file, or use keel::map_safetensors, which does not load it into memory";

/// Allocates memory for a tensor of a file, which may declare any size. Throws out_of_memory_error (E09).
inline at::Tensor memory_for(tensor_form const& form, safetensors_entry const& entry, std::string const& file,
                             char const* way_out) {
  try {
    return at::empty(form.shape, at::TensorOptions().dtype(form.type).device(at::kCPU));
  } catch (std::exception const& thrown) {
    if (!is_out_of_memory(thrown)) throw;
    throw out_of_memory_error("E09", "there is not enough memory for the tensor " + shown_name(entry.name) + " of " + file +
                                         ", which needs " + std::to_string(entry.end - entry.begin) + " bytes. " + way_out +
                                         ".");
  }
}

inline void require_bools(safetensors_entry const& entry, char const* bytes, std::uint64_t count, std::string const& file) {
  if (safetensors_scalar_types[entry.dtype] == at::kBool && !holds_bools(bytes, count))
    throw_damaged_safetensors(file, "the bool tensor " + shown_name(entry.name) + " holds bytes other than 0 and 1");
}

/// Reads all tensors. `read_at(destination, count, offset)` copies bytes of the data and is called on several threads; the
/// header check guarantees that the bytes exist. `check(entry, checksum)` is called for every tensor and may throw.
template <class ReadAt, class Check = unchecked>
safetensors_content read_safetensors_data(safetensors_header header, std::string const& file, ReadAt const& read_at,
                                          Check const& check = {}) {
  safetensors_content content;
  std::vector<std::pair<safetensors_entry const*, char*>> parts;
  std::uint64_t bytes = 0;
  for (auto const& entry : header.entries) {
    auto const form = form_of(entry, file);
    auto tensor = memory_for(form, entry, file, read_slices_or_map);
    if (form.as_bytes) content.as_bytes.emplace(entry.name, safetensors_dtypes[entry.dtype].name);
    parts.emplace_back(&entry, static_cast<char*>(tensor.data_ptr()));
    bytes += entry.end - entry.begin;
    content.tensors.emplace(entry.name, std::move(tensor));
  }
  // Largest first, for an even load of the threads.
  std::ranges::stable_sort(parts, std::ranges::greater(), [](auto const& part) { return part.first->end - part.first->begin; });
  for_each_in_parallel(parts.size(), bytes, [&](std::size_t index) {
    auto const [entry, memory] = parts[index];
    // Check each block while it is in the cache.
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

}  // namespace keel::detail::inline KEEL_MODE
