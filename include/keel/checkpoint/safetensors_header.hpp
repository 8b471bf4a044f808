// safetensors_header: the JSON header of a safetensors file, parsed and checked as a whole, or built; no LibTorch here.
// The file is `u64 LE N | N bytes of JSON | data`.
// Left out: alignment of the data to a page (64 bytes suit every element and every vector load).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <keel/checkpoint/safetensors_events.hpp>
#include <keel/core/error.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace keel {

/// N of a file of `file_bytes` bytes, whose first 8 (fewer in a shorter file) are at `prefix`.
inline std::uint64_t read_safetensors_length(char const* prefix, std::uint64_t file_bytes, std::string const& file) {
  using namespace detail;
  if (file_bytes < safetensors_prefix) refuse_safetensors(file, "it has fewer than 8 bytes");
  std::uint64_t length = 0;
  std::memcpy(&length, prefix, sizeof length);
  if (length > safetensors_max_header) refuse_safetensors(file, "it claims a header of more than 100,000,000 bytes");
  if (length > file_bytes - safetensors_prefix) refuse_safetensors(file, "its header ends past the end of the file");
  return length;
}

/// The header in `json`, which `data_bytes` bytes follow to the end of the file.
inline safetensors_header parse_safetensors_header(std::string_view json, std::uint64_t data_bytes, std::string const& file) {
  using namespace detail;
  // The parser would skip a byte-order mark and take a NUL for the end. White space is what Hugging Face's reader takes, before
  // the object and after it; some writers pad with it.
  constexpr std::string_view white_space = " \t\r\n";
  auto const first = json.find_first_not_of(white_space);
  auto const last = json.find_last_not_of(white_space);
  if (first == json.npos || json[first] != '{') refuse_safetensors(file, "its header is not a JSON object");
  if (json[last] != '}') refuse_safetensors(file, "its header does not end in } and white space");
  if (json.find('\0') != std::string_view::npos) refuse_safetensors(file, "its header holds a NUL byte");
  json = json.substr(first, last + 1 - first);
  safetensors_events events(file);
  nlohmann::json::sax_parse(json.begin(), json.end(), &events);
  auto header = events.take();
  auto& entries = header.entries;

  std::ranges::sort(entries, {}, &safetensors_entry::name);
  auto const twice = std::ranges::adjacent_find(entries, {}, &safetensors_entry::name);
  if (twice != entries.end()) refuse_safetensors(file, "its header has the name " + shown_name(twice->name) + " twice");
  // An empty tensor stands before the one that begins at the same byte.
  std::ranges::sort(entries, {}, [](auto const& entry) { return std::tuple(entry.begin, entry.end); });
  std::uint64_t expected = 0;
  for (auto const& entry : entries) {
    if (entry.begin != expected) refuse_safetensors(file, "there is a hole or an overlap before " + shown_name(entry.name));
    expected = entry.end;
  }
  if (expected != data_bytes)
    refuse_safetensors(file, "its tensors end at byte " + std::to_string(expected) + " of " + std::to_string(data_bytes));
  return header;
}

/// The file's bytes up to the data, padded. Gives the entries their offsets in the order in which they stand.
inline std::string build_safetensors_header(std::vector<safetensors_entry>& entries, string_map const& metadata) {
  using namespace detail;
  auto const text = [](std::string const& string) {
    try {
      return nlohmann::json(string).dump();
    } catch (nlohmann::json::type_error const&) {
      throw data_error("E05", "the name or metadata " + shown_name(string) + " is not UTF-8 and cannot be saved; rename it");
    }
  };
  std::string header(safetensors_prefix, '\0');
  header += "{\"__metadata__\":{";
  for (char const* comma = ""; auto const& [key, value] : metadata) {
    header += comma + text(key) + ":" + text(value);
    comma = ",";
  }
  header += "}";
  std::uint64_t offset = 0;
  for (auto& entry : entries) {
    auto const bytes = safetensors_bytes(entry.shape, entry.dtype);
    entry.begin = offset;
    if (!bytes || entry.shape.size() > safetensors_max_dimensions || __builtin_add_overflow(offset, *bytes, &entry.end))
      throw data_error("E05", "the tensor " + shown_name(entry.name) + " has too large a shape to be saved; reshape it");
    offset = entry.end;
    header += "," + text(entry.name) + ":{\"dtype\":\"" + std::string(safetensors_dtypes[entry.dtype].name) + "\",\"shape\":[";
    for (char const* comma = ""; auto const dimension : entry.shape) {
      header += comma;
      header += std::to_string(dimension);
      comma = ",";
    }
    header += "],\"data_offsets\":[" + std::to_string(entry.begin) + "," + std::to_string(entry.end) + "]}";
  }
  header += "}";
  header.resize((header.size() + safetensors_alignment - 1) / safetensors_alignment * safetensors_alignment, ' ');
  std::uint64_t const length = header.size() - safetensors_prefix;
  if (length > safetensors_max_header)
    throw data_error("E05", "the names and metadata to be saved take more than 100,000,000 bytes; split them over files");
  std::memcpy(header.data(), &length, sizeof length);
  return header;
}

}  // namespace keel
