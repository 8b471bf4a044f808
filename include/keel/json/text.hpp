// Parses JSON text from untrusted or damaged files into a tree. Rejects input that nlohmann-json alone would accept: it keeps the last of
// two equal keys, treats a NUL byte as the end of the text, and does not limit nesting.
// The tree is built from the parser's events, so that too deep nesting is rejected before it is built; nothing here is recursive.
#pragma once

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keel::detail {

/// Maximum nesting depth of arrays and objects.
inline constexpr std::size_t max_json_depth = 64;

/// The reason why a text is rejected, phrased to follow the file's name.
struct json_text_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Returns bytes in a form for error messages: short and printable, because they may be megabytes or contain terminal escapes.
inline std::string printable(std::string_view text, std::size_t longest) {
  std::string shown(text.substr(0, longest));
  std::replace_if(shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text.size() > longest ? shown + ".." : shown;
}

/// Replaces terminal control characters in each string, in ASCII and in UTF-8, except for newlines and tabs.
inline void replace_control_characters(nlohmann::json& value) {
  if (value.is_structured()) {
    for (nlohmann::json& one : value) replace_control_characters(one);
  } else if (value.is_string()) {
    auto& text = value.get_ref<std::string&>();
    for (std::size_t i = 0; i < text.size(); ++i) {
      auto const byte = static_cast<unsigned char>(text[i]);
      bool const is_control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f;
      bool const is_wide = byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
      if (is_control) text[i] = '?';
      if (is_wide) text.replace(i, 2, "?");
    }
  }
}

/// Builds a tree from the parser's events.
class json_tree_builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  nlohmann::json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, string_t const&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { throw json_text_error("binary data"); }

  bool start_object(std::size_t) override { return open(nlohmann::json::object()); }
  bool start_array(std::size_t) override { return open(nlohmann::json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& value) override {
    auto const [place, first] = open_.back()->get_ref<nlohmann::json::object_t&>().try_emplace(std::move(value));
    if (!first) throw json_text_error("the key '" + printable(place->first, 100) + "' stands twice in one object");
    value_of_key_ = &place->second;
    return true;
  }

  bool parse_error(std::size_t, std::string const&, nlohmann::json::exception const& thrown) override {
    std::string_view words = thrown.what();
    if (auto const end_of_id = words.find("] "); end_of_id != words.npos) words.remove_prefix(end_of_id + 2);
    // nlohmann-json's messages quote text of any length.
    throw json_text_error(printable(words, 300));
  }

 private:
  template <class Value>
  bool add(Value&& value) {
    place() = std::forward<Value>(value);
    return true;
  }
  bool open(nlohmann::json container) {
    if (open_.size() == max_json_depth)
      throw json_text_error("arrays and objects inside each other, more than " + std::to_string(max_json_depth) +
                            " levels deep");
    auto& here = place();
    here = std::move(container);
    open_.push_back(&here);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  /// Returns the location of the next value. A container does not grow while a nested one is open, so pointers to open ones remain valid.
  nlohmann::json& place() {
    if (open_.empty()) return root_;
    if (open_.back()->is_object()) return *value_of_key_;
    return open_.back()->get_ref<nlohmann::json::array_t&>().emplace_back();
  }

  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;
  nlohmann::json* value_of_key_ = nullptr;
};

/// Throws json_text_error if the text is not JSON, has a duplicate key in an object, or is nested too deeply.
inline nlohmann::json parse_json(std::string_view text) {
  if (auto const nul = text.find('\0'); nul != text.npos)
    throw json_text_error("a NUL byte at position " + std::to_string(nul));
  json_tree_builder builder;
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace keel::detail
