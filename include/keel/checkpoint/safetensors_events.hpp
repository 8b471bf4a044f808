// safetensors_events: the JSON events that fill a safetensors header from hostile bytes.
// Events, never a tree: a tree keeps the last of two equal names silently and nests without end.
#pragma once

#include <cstdint>
#include <keel/checkpoint/safetensors_header.hpp>
#include <keel/core/error.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace keel {

namespace detail {

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
