// Definitions for safetensors_header.hpp.
#pragma once

#include <algorithm>
#include <cstring>
#include <keel/checkpoint/safetensors_header.hpp>
#include <keel/core/error.hpp>
#include <keel/json/text.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY std::string shown_name(std::string_view name) { return "'" + printable(name, 100) + "'"; }

KEEL_BODY void throw_damaged_safetensors(std::string const& file, std::string const& reason) {
  throw checkpoint_error("E05", file + " is damaged or not a safetensors file: " + reason + "; use an older checkpoint");
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

// Parses events, not a tree: a tree silently keeps the last of two equal names, and its nesting depth is unlimited.

/// Receives the parser's events. Throws at the first one that is invalid in a header.
class safetensors_events final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit safetensors_events(std::string const& file) : file_(file) {}

  safetensors_header take() { return std::move(header_); }

  bool null() override { return top_is_metadata() || other("null"); }
  bool boolean(bool) override { return other("a boolean"); }
  bool number_integer(number_integer_t) override { return other("a negative number"); }
  bool number_float(number_float_t, string_t const&) override { return other("a fraction or a number beyond 64 bits"); }
  bool binary(binary_t&) override { return other("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == place::shape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) fail("a dimension beyond 63 bits");
      if (entry_.shape.size() == safetensors_max_dimensions) fail("more than 64 dimensions");
      entry_.shape.push_back(static_cast<std::int64_t>(value));
    } else if (place_ == place::offsets) {
      if (offsets_ == 2) fail("more than two data_offsets");
      (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
    } else {
      other("a number");
    }
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == place::metadata) {
      if (!header_.metadata.emplace(std::move(field_), std::move(value)).second) fail("a metadata key twice");
    } else if (place_ == place::entry && field_ == "dtype") {
      dtype_ = std::move(value);
    } else {
      other("a string");
    }
    return true;
  }

  bool key(string_t& value) override {
    switch (place_) {
      case place::top:
        entry_ = {};
        entry_.name = std::move(value);
        if (entry_.name == "__metadata__" && std::exchange(has_metadata_, true)) fail("a name twice");
        break;
      case place::entry:
        field_ = std::move(value);
        if ((field_ == "dtype" && std::exchange(has_dtype_, true)) || (field_ == "shape" && std::exchange(has_shape_, true)) ||
            (field_ == "data_offsets" && std::exchange(has_offsets_, true)))
          fail("a field twice");
        break;
      case place::metadata:
        field_ = std::move(value);
        break;
      default:
        break;  // inside an ignored field
    }
    return true;
  }

  bool start_object(std::size_t) override {
    deeper();
    if (place_ == place::outside) {
      place_ = place::top;
    } else if (top_is_metadata()) {
      place_ = place::metadata;
    } else if (place_ == place::top) {
      has_dtype_ = has_shape_ = has_offsets_ = false;
      offsets_ = 0;
      place_ = place::entry;
    } else {
      other("an object");
      ignore();
    }
    return true;
  }

  bool end_object() override {
    --depth_;
    if (place_ == place::ignored) {
      if (depth_ == ignored_above_) place_ = place::entry;
    } else if (place_ == place::top) {
      place_ = place::outside;
    } else {
      if (place_ == place::entry) finish_entry();
      place_ = place::top;
    }
    return true;
  }

  bool start_array(std::size_t) override {
    deeper();
    if (place_ == place::entry && field_ == "shape") {
      place_ = place::shape;
    } else if (place_ == place::entry && field_ == "data_offsets") {
      place_ = place::offsets;
    } else {
      other("an array");
      ignore();
    }
    return true;
  }

  bool end_array() override {
    --depth_;
    if (place_ != place::ignored || depth_ == ignored_above_) place_ = place::entry;
    return true;
  }

  bool parse_error(std::size_t position, std::string const&, nlohmann::detail::exception const&) override {
    // The parser's own message would quote the file at any length.
    throw_damaged_safetensors(file_,
                              "its header is not JSON in UTF-8 at byte " + std::to_string(safetensors_prefix + position));
  }

 private:
  enum class place : unsigned char { outside, top, metadata, entry, shape, offsets, ignored };

  bool top_is_metadata() const { return place_ == place::top && entry_.name == "__metadata__"; }

  [[noreturn]] void fail(std::string const& what) const {
    throw_damaged_safetensors(file_, "the header's entry " + shown_name(entry_.name) + " has " + what);
  }

  /// Returns true if the current field is unknown, because such a field may have any value.
  bool other(char const* what) const {
    bool const known = field_ == "dtype" || field_ == "shape" || field_ == "data_offsets";
    if (place_ == place::ignored || (place_ == place::entry && !known)) return true;
    fail(std::string(what) + " in a wrong place");
  }

  void ignore() {
    if (place_ == place::ignored) return;
    place_ = place::ignored;
    ignored_above_ = depth_ - 1;
  }

  void deeper() {
    if (++depth_ > safetensors_max_depth) fail("more than 8 levels of JSON");
  }

  void finish_entry() {
    if (!has_dtype_ || !has_shape_ || offsets_ != 2) fail("no dtype, no shape or not two data_offsets");
    entry_.dtype = safetensors_dtype_named(dtype_);
    if (entry_.dtype == safetensors_dtypes.size())
      throw checkpoint_error("E05", file_ + " contains the tensor " + shown_name(entry_.name) + " of dtype " +
                                        shown_name(dtype_) +
                                        ", which keel cannot load; convert it to F32, or use an older checkpoint");
    auto const bytes = safetensors_bytes(entry_.shape, entry_.dtype);
    if (!bytes) fail("a shape of more bytes than 63 bits can count, or of packed elements that do not fill whole bytes");
    if (entry_.end < entry_.begin) fail("data_offsets that run backwards");
    if (entry_.end - entry_.begin != *bytes) fail("data_offsets that do not fit its shape and dtype");
    header_.entries.push_back(std::move(entry_));
  }

  std::string const& file_;
  safetensors_header header_;
  safetensors_entry entry_;  ///< the entry being read; `name` is also the last key of the outermost object
  std::string field_;        ///< the last key inside an entry or the metadata
  std::string dtype_;
  std::size_t depth_ = 0;
  std::size_t ignored_above_ = 0;  ///< depth to return to when the ignored value ends
  std::size_t offsets_ = 0;
  place place_ = place::outside;
  bool has_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY std::uint64_t read_safetensors_length(char const* prefix, std::uint64_t file_bytes, std::string const& file) {
  using namespace detail;
  if (file_bytes < safetensors_prefix) throw_damaged_safetensors(file, "it has fewer than 8 bytes");
  std::uint64_t length = 0;
  std::memcpy(&length, prefix, sizeof length);
  if (length > safetensors_max_header) throw_damaged_safetensors(file, "it claims a header of more than 100,000,000 bytes");
  if (length > file_bytes - safetensors_prefix) throw_damaged_safetensors(file, "its header ends past the end of the file");
  return length;
}

KEEL_BODY safetensors_header parse_safetensors_header(std::string_view json, std::uint64_t data_bytes,
                                                      std::string const& file) {
  using namespace detail;
  // The parser would skip a byte-order mark and treat a NUL as the end. White space is accepted before and after the object, as
  // by Hugging Face's reader; some writers pad with it.
  constexpr std::string_view white_space = " \t\r\n";
  auto const first = json.find_first_not_of(white_space);
  auto const last = json.find_last_not_of(white_space);
  if (first == json.npos || json[first] != '{') throw_damaged_safetensors(file, "its header is not a JSON object");
  if (json[last] != '}') throw_damaged_safetensors(file, "its header does not end in } and white space");
  if (json.find('\0') != std::string_view::npos) throw_damaged_safetensors(file, "its header contains a NUL byte");
  json = json.substr(first, last + 1 - first);
  safetensors_events events(file);
  nlohmann::json::sax_parse(json.begin(), json.end(), &events);
  auto header = events.take();
  auto& entries = header.entries;

  std::ranges::sort(entries, {}, &safetensors_entry::name);
  auto const twice = std::ranges::adjacent_find(entries, {}, &safetensors_entry::name);
  if (twice != entries.end()) throw_damaged_safetensors(file, "its header has the name " + shown_name(twice->name) + " twice");
  // An empty tensor precedes the one that begins at the same byte.
  std::ranges::sort(entries, {}, [](auto const& entry) { return std::tuple(entry.begin, entry.end); });
  std::uint64_t expected = 0;
  for (auto const& entry : entries) {
    if (entry.begin != expected)
      throw_damaged_safetensors(file, "there is a hole or an overlap before " + shown_name(entry.name));
    expected = entry.end;
  }
  if (expected != data_bytes)
    throw_damaged_safetensors(file,
                              "its tensors end at byte " + std::to_string(expected) + " of " + std::to_string(data_bytes));
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
    throw data_error("E05", "the names and metadata to be saved exceed 100,000,000 bytes; split them over several files");
  std::memcpy(header.data(), &length, sizeof length);
  return header;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
