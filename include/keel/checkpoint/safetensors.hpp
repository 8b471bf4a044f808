// safetensors: tensors by name in a file that every framework loads, that maps into memory and that never runs code.
// Two names of one tensor (tied weights) are stored once; `__metadata__` keeps "alias:NAME" -> "STORED_NAME" for the other,
// and loading gives both names the same tensor again. Views that only overlap are stored whole, each by itself.
// Left out: sharded files and their index, memory mapping, checksums (the manifest's), and replacing a file atomically.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <keel/checkpoint/safetensors_header.hpp>
#include <keel/error.hpp>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

namespace keel {

using tensor_map = std::map<std::string, at::Tensor>;

struct safetensors_content {
  tensor_map tensors;   ///< on the CPU, contiguous, owning their memory; an alias is the same at::Tensor
  string_map metadata;  ///< without the aliases
};

namespace detail {

/// In the order of safetensors_dtypes.
inline constexpr std::array safetensors_scalar_types{at::kBool,  at::kByte,   at::kChar,        at::kShort,
                                                     at::kInt,   at::kLong,   at::kHalf,        at::kBFloat16,
                                                     at::kFloat, at::kDouble, at::kComplexFloat};
static_assert(safetensors_scalar_types.size() == safetensors_dtypes.size());

inline constexpr std::string_view safetensors_alias = "alias:";

/// Any other byte in a C++ bool is undefined behaviour, so neither side lets one through.
inline bool holds_bools(char const* bytes, std::uint64_t count) {
  return std::all_of(bytes, bytes + count, [](char byte) { return byte == 0 || byte == 1; });
}

/// Everything that can be refused is refused before the first byte is written.
class safetensors_writer {
 public:
  safetensors_writer(tensor_map const& tensors, string_map metadata) : tensors_(tensors) {
    for (auto const& [key, value] : metadata)
      if (key.starts_with(safetensors_alias))
        throw data_error(
            "E05", "the metadata key " + shown_name(key) + " begins with 'alias:', which is for shared tensors; rename it");
    metadata["format"] = "pt";  // transformers refuses a file without it

    std::map<identity, std::string> stored;
    for (auto const& [name, tensor] : tensors) {
      auto entry = describe(name, tensor);
      auto const [known, first] = stored.try_emplace(identity_of(tensor), name);
      if (first)
        entries_.push_back(std::move(entry));
      else
        metadata[std::string(safetensors_alias) + name] = known->second;
    }
    // Widest elements first, so that every tensor is aligned to its elements; the map has sorted the names.
    std::ranges::stable_sort(entries_, std::ranges::greater(),
                             [](auto const& entry) { return safetensors_dtypes[entry.dtype].bytes; });
    header_ = build_safetensors_header(entries_, metadata);
  }

  template <class Sink>
  void write(Sink& sink) const {
    sink(static_cast<char const*>(header_.data()), header_.size());
    for (auto const& entry : entries_) {
      if (entry.begin == entry.end) continue;
      // One copy at a time, and none of a tensor that is already contiguous on the CPU.
      auto const tensor = tensors_.at(entry.name).detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous();
      auto const* const bytes = static_cast<char const*>(tensor.data_ptr());
      sink(bytes, static_cast<std::size_t>(entry.end - entry.begin));
    }
  }

 private:
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

  static safetensors_entry describe(std::string const& name, at::Tensor const& tensor) {
    auto const fail = [&](std::string const& what) { throw data_error("E05", "the tensor " + shown_name(name) + " " + what); };
    if (name == "__metadata__") fail("has the name that safetensors keeps for metadata; rename it");
    if (!tensor.defined()) fail("is undefined and cannot be saved; leave it out");
    if (tensor.layout() != at::kStrided) fail("is sparse or of another layout without strides; save it as to_dense()");
    if (tensor.is_meta() || !tensor.has_storage()) fail("has no memory of its own and cannot be saved; materialize it");
    auto const type = std::ranges::find(safetensors_scalar_types, tensor.scalar_type());
    if (type == safetensors_scalar_types.end())
      fail(std::string("has the dtype ") + c10::toString(tensor.scalar_type()) + ", which keel cannot save; convert it");
    if (tensor.scalar_type() == at::kBool && tensor.view(at::kByte).gt(1).any().item<bool>())
      fail("is of bool and holds bytes other than 0 and 1; save it as uint8");
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

/// `source(destination, count)` delivers the data in file order; the header has proved that there is enough of it.
template <class Source>
safetensors_content read_safetensors_data(safetensors_header header, std::string const& file, Source&& source) {
  safetensors_content content;
  for (auto const& entry : header.entries) {
    auto const type = safetensors_scalar_types[entry.dtype];
    auto tensor = at::empty(entry.shape, at::TensorOptions().dtype(type).device(at::kCPU));
    if (auto const count = entry.end - entry.begin; count != 0) {
      auto* const bytes = static_cast<char*>(tensor.data_ptr());
      source(bytes, static_cast<std::size_t>(count));
      if (type == at::kBool && !holds_bools(bytes, count))
        refuse_safetensors(file, "the bool tensor " + shown_name(entry.name) + " holds bytes other than 0 and 1");
    }
    content.tensors.emplace(entry.name, std::move(tensor));
  }
  // All aliases are looked up among the stored tensors before one is added: an alias of an alias is not ours.
  std::vector<std::pair<std::string, at::Tensor>> aliases;
  for (auto const& [key, target] : header.metadata) {
    if (!key.starts_with(safetensors_alias)) {
      content.metadata.emplace(key, target);
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
  return content;
}

struct close_safetensors {
  void operator()(std::FILE* file) const noexcept { std::fclose(file); }
};
using safetensors_file = std::unique_ptr<std::FILE, close_safetensors>;

[[noreturn]] inline void fail_safetensors_file(char const* verb, std::filesystem::path const& path, int code,
                                               char const* way_out) {
  throw file_error("E02", std::string("cannot ") + verb + " " + path.string() + ": " + std::generic_category().message(code) +
                              "; " + way_out);
}

}  // namespace detail

/// Calls `sink(char const* bytes, std::size_t count)` in file order; a tensor's bytes are valid during the call only.
template <class Sink>
void write_safetensors(tensor_map const& tensors, string_map const& metadata, Sink&& sink) {
  detail::safetensors_writer(tensors, metadata).write(sink);
}

/// `bytes` is the whole file, and need not outlive the call; `name` is what errors call it.
inline safetensors_content parse_safetensors(std::span<char const> bytes, std::string const& name) {
  auto const length = read_safetensors_length(bytes.data(), bytes.size(), name);
  auto data = bytes.subspan(detail::safetensors_prefix);
  auto const json = data.first(static_cast<std::size_t>(length));
  data = data.subspan(json.size());
  auto header = parse_safetensors_header({json.data(), json.size()}, data.size(), name);
  return detail::read_safetensors_data(std::move(header), name, [&](char* destination, std::size_t count) {
    std::memcpy(destination, data.data(), count);
    data = data.subspan(count);
  });
}

/// Writes in place: a crash leaves a file that loading refuses. Nothing is touched if a tensor cannot be saved.
inline void save_safetensors(std::filesystem::path const& path, tensor_map const& tensors, string_map const& metadata = {}) {
  auto const check = [&](bool good) {
    if (!good) detail::fail_safetensors_file("write", path, errno, "check the folder, its permissions and its free space");
  };
  detail::safetensors_writer const writer(tensors, metadata);
  detail::safetensors_file file(std::fopen(path.string().c_str(), "wb"));
  check(file != nullptr);
  auto const sink = [&](char const* bytes, std::size_t count) { check(std::fwrite(bytes, 1, count, file.get()) == count); };
  writer.write(sink);
  check(std::fclose(file.release()) == 0);  // a full disk may show only here
}

/// Reads each tensor straight into its memory, so that the file is never held twice.
inline safetensors_content load_safetensors(std::filesystem::path const& path) {
  auto const fail = [&](int code) {
    detail::fail_safetensors_file("read", path, code, "check the path and its permissions, or take an older checkpoint");
  };
  auto const name = path.string();
  std::error_code size_error;
  std::uint64_t const size = std::filesystem::file_size(path, size_error);
  if (size_error) fail(size_error.value());
  detail::safetensors_file const file(std::fopen(name.c_str(), "rb"));
  if (!file) fail(errno);
  auto const source = [&](char* destination, std::size_t count) {
    if (std::fread(destination, 1, count, file.get()) == count) return;
    if (std::ferror(file.get()) != 0) fail(errno);
    detail::refuse_safetensors(name, "it became shorter while it was read");
  };
  std::array<char, detail::safetensors_prefix> prefix{};
  if (size >= prefix.size()) source(prefix.data(), prefix.size());
  std::string json(static_cast<std::size_t>(read_safetensors_length(prefix.data(), size, name)), '\0');
  source(json.data(), json.size());
  auto header = parse_safetensors_header(json, size - prefix.size() - json.size(), name);
  return detail::read_safetensors_data(std::move(header), name, source);
}

}  // namespace keel
