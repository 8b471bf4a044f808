// Maps safetensors dtypes to LibTorch's scalar types. A tensor of a dtype that this LibTorch lacks is loaded as bytes.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <keel/checkpoint/safetensors_header.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// Types that LibTorch 1.13 lacks; 2.6 has all but F8_E8M0, which 2.14 has too. Detected by name, not by version, because only
/// the existence of the type matters.
template <class Type>
constexpr Type newer_scalar_type(std::string_view dtype) {
  if constexpr (requires { Type::Float8_e5m2; }) {
    if (dtype == "F8_E5M2") return Type::Float8_e5m2;
  }
  if constexpr (requires { Type::Float8_e4m3fn; }) {
    if (dtype == "F8_E4M3") return Type::Float8_e4m3fn;
  }
  if constexpr (requires { Type::Float8_e8m0fnu; }) {
    if (dtype == "F8_E8M0") return Type::Float8_e8m0fnu;
  }
  if constexpr (requires { Type::Float8_e4m3fnuz; }) {
    if (dtype == "F8_E4M3FNUZ") return Type::Float8_e4m3fnuz;
  }
  if constexpr (requires { Type::Float8_e5m2fnuz; }) {
    if (dtype == "F8_E5M2FNUZ") return Type::Float8_e5m2fnuz;
  }
  if constexpr (requires { Type::UInt16; }) {
    if (dtype == "U16") return Type::UInt16;
  }
  if constexpr (requires { Type::UInt32; }) {
    if (dtype == "U32") return Type::UInt32;
  }
  if constexpr (requires { Type::UInt64; }) {
    if (dtype == "U64") return Type::UInt64;
  }
  return Type::Undefined;
}

inline constexpr std::array<std::pair<std::string_view, c10::ScalarType>, 11> common_scalar_types{{
    {"BOOL", c10::ScalarType::Bool},
    {"U8", c10::ScalarType::Byte},
    {"I8", c10::ScalarType::Char},
    {"I16", c10::ScalarType::Short},
    {"F16", c10::ScalarType::Half},
    {"BF16", c10::ScalarType::BFloat16},
    {"I32", c10::ScalarType::Int},
    {"F32", c10::ScalarType::Float},
    {"C64", c10::ScalarType::ComplexFloat},
    {"F64", c10::ScalarType::Double},
    {"I64", c10::ScalarType::Long},
}};
static_assert(std::ranges::all_of(common_scalar_types, [](auto const& common) {
  return safetensors_dtype_named(common.first) < safetensors_dtypes.size();
}));

/// The types in the order of safetensors_dtypes. Undefined if this LibTorch has no such type, or packs its elements
/// differently.
inline constexpr auto safetensors_scalar_types = [] {
  std::array<c10::ScalarType, safetensors_dtypes.size()> types{};
  for (std::size_t i = 0; i < types.size(); ++i) {
    types[i] = newer_scalar_type<c10::ScalarType>(safetensors_dtypes[i].name);
    for (auto const& [dtype, type] : common_scalar_types) {
      if (dtype == safetensors_dtypes[i].name) types[i] = type;
    }
  }
  return types;
}();

/// Type and shape of a file's tensor in LibTorch.
struct tensor_form {
  c10::ScalarType type;
  std::vector<std::int64_t> shape;
  bool as_bytes;
};

/// Returns the form of an entry. For a type loaded as bytes, multi-byte elements add a last dimension, and packed elements
/// become one row of bytes.
inline tensor_form form_of(safetensors_entry const& entry, std::string const& file) {
  auto const type = safetensors_scalar_types[entry.dtype];
  if (type != c10::ScalarType::Undefined) return {type, entry.shape, false};
  auto const bits = safetensors_dtypes[entry.dtype].bits;
  tensor_form form{c10::ScalarType::Byte, entry.shape, true};
  if (bits % 8 != 0) form.shape = {static_cast<std::int64_t>(entry.end - entry.begin)};
  if (bits % 8 == 0 && bits > 8) form.shape.push_back(static_cast<std::int64_t>(bits / 8));
  if (form.shape.size() > safetensors_max_dimensions)
    throw_damaged_safetensors(file, "the bytes of " + shown_name(entry.name) + " would need more than 64 dimensions");
  return form;
}

}  // namespace keel::detail::inline KEEL_MODE
