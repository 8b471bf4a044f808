// JSON text as a tree, for files that anyone may have written or damaged: what nlohmann-json alone would let through is
// rejected. It keeps the last of two equal keys, takes a NUL byte for the end of the text, and nests without end.
// The events build the tree, so that what is too deep is rejected before it exists; nothing here calls itself.
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

/// Of arrays and objects inside each other.
inline constexpr std::size_t max_json_depth = 64;

/// Why a text cannot be used, as words that fit into a sentence after the file's name.
struct json_text_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Any bytes as an error shows them: short, and printable, because they may hold megabytes or codes of the terminal.
inline std::string printable(std::string_view text, std::size_t longest) {
  std::string shown(text.substr(0, longest));
  std::replace_if(shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text.size() > longest ? shown + ".." : shown;
}

/// Replaces what a terminal would act on in each string: control characters but for the end of a line and a tab, in ASCII and in UTF-8.
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

/// Takes the parser's events.
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
    // They quote the text at any length.
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
  /// Where the next value goes. A container does not grow while one inside it is open, so what is open stays where it is.
  nlohmann::json& place() {
    if (open_.empty()) return root_;
    if (open_.back()->is_object()) return *value_of_key_;
    return open_.back()->get_ref<nlohmann::json::array_t&>().emplace_back();
  }

  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;
  nlohmann::json* value_of_key_ = nullptr;
};

/// Throws json_text_error for a text that is not JSON, has one key twice in an object, or nests too deep.
inline nlohmann::json parse_json(std::string_view text) {
  if (auto const nul = text.find('\0'); nul != text.npos)
    throw json_text_error("a NUL byte at position " + std::to_string(nul));
  json_tree_builder builder;
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace keel::detail
