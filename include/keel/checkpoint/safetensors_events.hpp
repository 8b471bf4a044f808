// safetensors_events: what a safetensors header holds, and the JSON events that fill it from hostile bytes.
// Events, never a tree: a tree keeps the last of two equal names silently and nests without end.
// The dtypes are those of Hugging Face's reader 0.8.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <keel/core/error.hpp>
#include <keel/json/text.hpp>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keel {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and keel copies it unchanged");

using string_map = std::map<std::string, std::string>;

struct safetensors_dtype {
  std::string_view name;
  std::uint64_t bits;  ///< of one element; those of F4 and F6 are packed, so that only a whole tensor fills whole bytes
  constexpr std::uint64_t alignment() const { return bits % 8 == 0 ? bits / 8 : 1; }
};
inline constexpr std::array<safetensors_dtype, 22> safetensors_dtypes{{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};

namespace detail {
/// The size of the table for a name that is not in it.
constexpr std::size_t safetensors_dtype_named(std::string_view name) {
  return static_cast<std::size_t>(std::ranges::find(safetensors_dtypes, name, &safetensors_dtype::name) -
                                  safetensors_dtypes.begin());
}
static_assert([] {
  for (std::size_t i = 0; i < safetensors_dtypes.size(); ++i) {
    if (safetensors_dtype_named(safetensors_dtypes[i].name) != i) return false;  // a name twice
    if (!std::has_single_bit(safetensors_dtypes[i].alignment())) return false;
  }
  return true;
}());
}  // namespace detail

struct safetensors_entry {
  std::string name;
  std::size_t dtype = 0;            ///< index into safetensors_dtypes
  std::vector<std::int64_t> shape;  ///< empty: a scalar
  std::uint64_t begin = 0;          ///< counted from the first byte after the header
  std::uint64_t end = 0;
};

struct safetensors_header {
  std::vector<safetensors_entry> entries;  ///< in file order, without hole or overlap
  string_map metadata;
};

namespace detail {

inline constexpr std::uint64_t safetensors_prefix = 8;
inline constexpr std::uint64_t safetensors_max_header = 100'000'000;
inline constexpr std::uint64_t safetensors_alignment = 64;
inline constexpr std::size_t safetensors_max_depth = 8;
inline constexpr std::size_t safetensors_max_dimensions = 64;  // LibTorch's iterators refuse more

inline std::string shown_name(std::string_view name) { return "'" + printable(name, 100) + "'"; }

[[noreturn]] inline void refuse_safetensors(std::string const& file, std::string const& reason) {
  throw checkpoint_error("E05", file + " is damaged or not a safetensors file: " + reason + "; take an older checkpoint");
}

/// Bytes of a tensor, or nothing if they cannot be counted in 63 bits or are not whole. A dimension of 0 counts as 1 for the
/// overflow check only, because LibTorch multiplies the other dimensions into strides.
inline std::optional<std::uint64_t> safetensors_bytes(std::vector<std::int64_t> const& shape, std::size_t dtype) {
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

/// Takes the parser's events and throws at the first that a header must not have.
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
        break;  // inside a field that is ignored
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
    // The parser's own words quote the file at any length.
    refuse_safetensors(file_, "its header is not JSON in UTF-8 at byte " + std::to_string(safetensors_prefix + position));
  }

 private:
  enum class place : unsigned char { outside, top, metadata, entry, shape, offsets, ignored };

  bool top_is_metadata() const { return place_ == place::top && entry_.name == "__metadata__"; }

  [[noreturn]] void fail(std::string const& what) const {
    refuse_safetensors(file_, "the header's entry " + shown_name(entry_.name) + " has " + what);
  }

  /// A value that only an unknown field may have.
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
      throw checkpoint_error("E05", file_ + " holds the tensor " + shown_name(entry_.name) + " of dtype " + shown_name(dtype_) +
                                        ", which keel cannot load; convert it to F32, or take an older checkpoint");
    auto const bytes = safetensors_bytes(entry_.shape, entry_.dtype);
    if (!bytes) fail("a shape of more bytes than 63 bits can count, or of packed elements that do not fill whole bytes");
    if (entry_.end < entry_.begin) fail("data_offsets that run backwards");
    if (entry_.end - entry_.begin != *bytes) fail("data_offsets that do not fit its shape and dtype");
    header_.entries.push_back(std::move(entry_));
  }

  std::string const& file_;
  safetensors_header header_;
  safetensors_entry entry_;  ///< the one being read; `name` is also the last key of the outermost object
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

}  // namespace detail
}  // namespace keel
