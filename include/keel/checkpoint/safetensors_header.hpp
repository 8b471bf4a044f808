// safetensors_header: the JSON header of a safetensors file, parsed and validated as a whole, or built. The dtypes are those of
// Hugging Face's reader 0.8. The file is `u64 LE N | N bytes of JSON | data`. Not supported: alignment of the data to a page
// (64 bytes suffice for every element type and vector load).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <keel/checkpoint/tensor_map.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keel::inline KEEL_MODE {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and keel copies it unchanged");

struct safetensors_dtype {
  std::string_view name;
  std::uint64_t bits;  ///< size of one element; F4 and F6 are packed, so that only a whole tensor is a whole number of bytes
  constexpr std::uint64_t alignment() const { return bits % 8 == 0 ? bits / 8 : 1; }
};
inline constexpr std::array<safetensors_dtype, 22> safetensors_dtypes{{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {
/// Returns the index of the dtype, or the size of the table for an unknown name.
constexpr std::size_t safetensors_dtype_named(std::string_view name) {
  return static_cast<std::size_t>(std::ranges::find(safetensors_dtypes, name, &safetensors_dtype::name) -
                                  safetensors_dtypes.begin());
}
static_assert([] {
  for (std::size_t i = 0; i < safetensors_dtypes.size(); ++i) {
    if (safetensors_dtype_named(safetensors_dtypes[i].name) != i) return false;  // duplicate name
    if (!std::has_single_bit(safetensors_dtypes[i].alignment())) return false;
  }
  return true;
}());
}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

struct safetensors_entry {
  std::string name;
  std::size_t dtype = 0;            ///< index into safetensors_dtypes
  std::vector<std::int64_t> shape;  ///< empty: a scalar
  std::uint64_t begin = 0;          ///< counted from the first byte after the header
  std::uint64_t end = 0;
};

struct safetensors_header {
  std::vector<safetensors_entry> entries;  ///< in file order, without gaps or overlaps
  string_map metadata;
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

inline constexpr std::uint64_t safetensors_prefix = 8;
inline constexpr std::uint64_t safetensors_max_header = 100'000'000;
inline constexpr std::uint64_t safetensors_alignment = 64;
inline constexpr std::size_t safetensors_max_depth = 8;
inline constexpr std::size_t safetensors_max_dimensions = 64;  // LibTorch's iterators reject more

std::string shown_name(std::string_view name);

[[noreturn]] void throw_damaged_safetensors(std::string const& file, std::string const& reason);

/// Returns the size of a tensor in bytes; nullopt if it overflows 63 bits or is not a whole number of bytes. A dimension of 0
/// counts as 1, but only for the overflow check, because LibTorch multiplies the other dimensions into strides.
std::optional<std::uint64_t> safetensors_bytes(std::vector<std::int64_t> const& shape, std::size_t dtype);

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Returns N for a file of `file_bytes` bytes, whose first 8 bytes (fewer if the file is shorter) are at `prefix`.
std::uint64_t read_safetensors_length(char const* prefix, std::uint64_t file_bytes, std::string const& file);

/// Parses and validates the header `json`. `data_bytes`: number of bytes from its end to the end of the file.
safetensors_header parse_safetensors_header(std::string_view json, std::uint64_t data_bytes, std::string const& file);

/// Builds the file's bytes before the data, with padding. Assigns the entries their offsets, in the given order.
std::string build_safetensors_header(std::vector<safetensors_entry>& entries, string_map const& metadata);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/checkpoint/safetensors_header.ipp>
#endif
