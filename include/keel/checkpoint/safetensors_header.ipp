// The bodies of safetensors_header.hpp.
#pragma once

#include <algorithm>
#include <cstring>
#include <keel/checkpoint/safetensors_events.hpp>
#include <keel/checkpoint/safetensors_header.hpp>
#include <keel/core/error.hpp>
#include <keel/json/text.hpp>
#include <nlohmann/json.hpp>
#include <tuple>

#include <keel/core/detail/body_begin.inc>

namespace keel {
namespace detail {

KEEL_BODY std::string shown_name(std::string_view name) { return "'" + printable(name, 100) + "'"; }

KEEL_BODY void refuse_safetensors(std::string const& file, std::string const& reason) {
  throw checkpoint_error("E05", file + " is damaged or not a safetensors file: " + reason + "; take an older checkpoint");
}

KEEL_BODY std::optional<std::uint64_t> safetensors_bytes(std::vector<std::int64_t> const& shape, std::size_t dtype) {
  auto const bits = static_cast<std::int64_t>(safetensors_dtypes[dtype].bits);
  bool const packed = bits % 8 != 0;
  std::int64_t count = packed ? bits : bits / 8;
  bool empty = false;
  for (auto const dimension : shape) {
    empty = empty || dimension == 0;
    if (dimension < 0 || __builtin_mul_overflow(count, std::max<std::int64_t>(dimension, 1), &count)) return std::nullopt;
  }
  if (empty) return 0;
  if (!packed) return static_cast<std::uint64_t>(count);
  if (count % 8 != 0) return std::nullopt;
  return static_cast<std::uint64_t>(count / 8);
}

}  // namespace detail
}  // namespace keel

namespace keel {

KEEL_BODY std::uint64_t read_safetensors_length(char const* prefix, std::uint64_t file_bytes, std::string const& file) {
  using namespace detail;
  if (file_bytes < safetensors_prefix) refuse_safetensors(file, "it has fewer than 8 bytes");
  std::uint64_t length = 0;
  std::memcpy(&length, prefix, sizeof length);
  if (length > safetensors_max_header) refuse_safetensors(file, "it claims a header of more than 100,000,000 bytes");
  if (length > file_bytes - safetensors_prefix) refuse_safetensors(file, "its header ends past the end of the file");
  return length;
}

KEEL_BODY safetensors_header parse_safetensors_header(std::string_view json, std::uint64_t data_bytes,
                                                      std::string const& file) {
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

KEEL_BODY std::string build_safetensors_header(std::vector<safetensors_entry>& entries, string_map const& metadata) {
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

#include <keel/core/detail/body_end.inc>
