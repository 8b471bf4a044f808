// Reads fields of settings from JSON. Errors name the location and the nearest known name.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <keel/core/error.hpp>
#include <keel/json/text.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel {

/// Thrown for an invalid configuration file (E13); `path()` is the location of the error, as a JSON pointer.
class config_error : public error {
 public:
  /// Constructs the error from a location and a message.
  config_error(std::string path, std::string sentence)
      : error("E13", (path.empty() ? "" : path + " ") + sentence), path_(std::move(path)), sentence_(std::move(sentence)) {}
  /// Returns the location in the file, as a JSON pointer such as "/clip/global_norm".
  std::string const& path() const noexcept { return path_; }
  /// Returns the same error with the file's name before the location.
  config_error in_file(std::string const& file) const {
    config_error named(file + (path_.empty() ? ":" : ": " + path_), sentence_);
    named.path_ = path_;
    return named;
  }

 private:
  std::string path_;
  std::string sentence_;
};

namespace detail {

[[noreturn]] inline void throw_wrong(std::string const& path, std::string const& sentence) {
  throw config_error(path, sentence + ".");
}

/// Returns the edit distance of two words: the number of letters to insert, remove or replace (Levenshtein 1966).
inline std::size_t distance(std::string const& from, std::string const& to) {
  std::vector<std::size_t> row(to.size() + 1);
  for (std::size_t j = 0; j <= to.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= from.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= to.size(); ++j) {
      std::size_t const replaced = diagonal + (from[i - 1] == to[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row[to.size()];
}

/// `kind`: what the name should be: slot, policy or field.
[[noreturn]] inline void throw_unknown(std::string const& path, std::string const& name, std::string const& kind,
                                       std::vector<std::string> const& known) {
  std::string const shown = printable(name, 100);
  std::string words = "has no " + kind + " \"" + shown + "\"";
  if (known.empty()) throw_wrong(path, words + "; nothing can be set there");
  auto const nearest = std::min_element(known.begin(), known.end(),
                                        [&](auto const& a, auto const& b) { return distance(shown, a) < distance(shown, b); });
  if (distance(shown, *nearest) <= std::max<std::size_t>(2, shown.size() / 3)) words += "; did you mean \"" + *nearest + "\"?";
  words += words.back() == '?' ? " There are:" : ". There are:";
  for (std::string const& one : known) words += " " + one;
  throw_wrong(path.empty() ? "the recipe" : path, words);
}

/// Parses JSON from an untrusted source; see parse_json.
inline nlohmann::json parse_strictly(std::string const& text) {
  try {
    return parse_json(text);
  } catch (json_text_error const& thrown) {
    std::string const words = thrown.what();
    throw_wrong("", (words.starts_with("parse error") ? "is not JSON: " : "cannot be used: ") + words);
  }
}

/// Reads fields and records the known names.
class json_fields {
 public:
  /// `taken`: the fields that are allowed there, between blanks, or "*". `argument`: the field that is elsewhere, at `argument_place`.
  json_fields(nlohmann::json const& object, std::string const& path, std::string taken, std::string argument,
              std::string argument_place)
      : object_(object),
        path_(path),
        taken_(std::move(taken)),
        argument_(std::move(argument)),
        argument_place_(std::move(argument_place)) {}

  void truth(char const* name, bool& to) {
    if (auto const* value = find(name)) {
      if (!value->is_boolean()) throw_wrong(place(name), "must be true or false");
      to = value->get<bool>();
    }
  }
  void number(char const* name, double& to) {
    if (auto const* value = find(name)) {
      if (!value->is_number()) throw_wrong(place(name), "must be a number");
      to = value->get<double>();
    }
  }
  /// Sets `is_set` to true if the field is present.
  void optional_number(char const* name, double& to, bool& is_set) {
    if (find(name) == nullptr) return;
    number_or_infinity(name, to);
    is_set = true;
  }
  void number_or_infinity(char const* name, double& to) {
    auto const* value = find(name);
    if (value == nullptr) return;
    if (*value == "infinity" || *value == "-infinity") {
      to = *value == "infinity" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
    } else {
      if (!value->is_number()) throw_wrong(place(name), "must be a number, or \"infinity\"");
      to = value->get<double>();
    }
  }
  template <class Integer>
    requires std::is_integral_v<Integer>
  void number(char const* name, Integer& to) {
    if (auto const* value = find(name)) to = integer<Integer>(*value, name);
  }
  void number_between(char const* name, int& to, int least, int most) {
    int const before = to;
    number(name, to);
    if (to != before && (to < least || to > most)) {
      throw_wrong(place(name), "must be from " + std::to_string(least) + " to " + std::to_string(most));
    }
  }
  void optional_updates(char const* name, long long& to, bool& is_set) {
    if (find(name) == nullptr) return;
    updates(name, to);
    is_set = true;
  }
  void updates(char const* name, long long& to) { duration(name, to, {{"_steps", 1}}, "500 or \"500_steps\""); }
  /// Elements beyond the capacity are only counted in `count`.
  template <int Size>
  void list_of_updates(char const* name, long long (&to)[Size], int& count) {
    auto const* values = find(name);
    if (values == nullptr) return;
    if (!values->is_array()) throw_wrong(place(name), "must be a list of updates, such as [1000, \"2000_steps\"]");
    count = 0;
    for (auto const& value : *values) {
      long long const read = read_duration(value, name, {{"_steps", 1}}, "500 or \"500_steps\"");
      if (count < Size) to[count] = read;
      ++count;
    }
  }
  void epochs(char const* name, long long& to) { duration(name, to, {{"_epochs", 1}}, "1 or \"1_epochs\""); }
  void tokens(char const* name, long long& to) { duration(name, to, {{"_tokens", 1}}, "10000000 or \"10000000_tokens\""); }
  /// A short text, null-terminated.
  template <std::size_t Size>
  void name(char const* name, char (&to)[Size]) {
    auto const* value = find(name);
    if (value == nullptr) return;
    if (!value->is_string()) throw_wrong(place(name), "must be a name, as a string");
    auto const word = value->get<std::string>();
    if (word.size() >= Size || word.find('\0') != std::string::npos)
      throw_wrong(place(name), "must be a name of at most " + std::to_string(Size - 1) + " bytes");
    std::fill(std::begin(to), std::end(to), '\0');
    std::copy(word.begin(), word.end(), to);
  }
  void seconds(char const* name, long long& to) {
    duration(name, to, {{"_s", 1}, {"_min", 60}, {"_h", 3600}}, "30, \"30_s\", \"10_min\" or \"2_h\"");
  }
  /// Reads a list of policies of a description.
  template <class Settings, int Size, class Description>
  void list(char const* name, Settings (&to)[Size], int& count, Description description);
  template <class Enum>
  void choice(char const* name, Enum& to, std::initializer_list<char const*> names) {
    auto const* value = find(name);
    if (value == nullptr) return;
    if (!value->is_string()) throw_wrong(place(name), "must be one of the names of its kind, as a string");
    auto const word = value->get<std::string>();
    auto const found = std::find(names.begin(), names.end(), word);
    if (found == names.end()) throw_unknown(place(name), word, "choice", {names.begin(), names.end()});
    to = static_cast<Enum>(found - names.begin());
  }

  /// Throws for the first key that is not a known field.
  void require_all_known() const {
    for (auto const& [key, value] : object_.items()) {
      if (std::find(known_.begin(), known_.end(), key) == known_.end()) throw_unknown(path_, key, "field", known_);
    }
  }

 private:
  std::string place(char const* name) const { return name == argument_ ? argument_place_ : path_ + "/" + name; }
  nlohmann::json const* find(char const* name) {
    if (taken_ != "*" && taken_.find(" " + std::string(name) + " ") == std::string::npos) return nullptr;
    known_.emplace_back(name);
    auto const found = object_.find(name);
    return found == object_.end() ? nullptr : &*found;
  }
  template <class Integer>
  Integer integer(nlohmann::json const& value, char const* name) const {
    if (value.is_number_unsigned()) {
      auto const wide = value.get<std::uint64_t>();
      if (wide <= static_cast<std::uint64_t>(std::numeric_limits<Integer>::max())) return static_cast<Integer>(wide);
    } else if (value.is_number_integer() && std::is_signed_v<Integer>) {
      auto const wide = value.get<std::int64_t>();
      if (wide >= static_cast<std::int64_t>(std::numeric_limits<Integer>::min())) return static_cast<Integer>(wide);
    }
    throw_wrong(place(name), "must be a whole number that fits");
  }
  void duration(char const* name, long long& to, std::initializer_list<std::pair<char const*, long long>> units,
                char const* examples) {
    if (auto const* value = find(name)) to = read_duration(*value, name, units, examples);
  }
  long long read_duration(nlohmann::json const& value, char const* name,
                          std::initializer_list<std::pair<char const*, long long>> units, char const* examples) const {
    if (!value.is_string()) return integer<long long>(value, name);
    std::string const word = value.get<std::string>();
    for (auto const& [unit, factor] : units) {
      std::string const suffix = unit;
      if (word.size() <= suffix.size() || !word.ends_with(suffix)) continue;
      std::string const digits = word.substr(0, word.size() - suffix.size());
      // Twelve digits do not overflow, even in hours.
      if (digits.size() > 12 || digits.find_first_not_of("0123456789") != std::string::npos) continue;
      return std::stoll(digits) * factor;
    }
    throw_wrong(place(name), std::string("must be a duration such as ") + examples);
  }

  nlohmann::json const& object_;
  std::string path_;
  std::string taken_;
  std::string argument_;
  std::string argument_place_;
  std::vector<std::string> known_;
};

/// Reads an object of fields, or a list of the names of those that are true.
template <class Description, class Settings>
void read_fields(Settings& settings, nlohmann::json const& content, std::string const& path, std::string const& taken = "*",
                 std::string const& argument = "", std::string const& argument_place = "") {
  nlohmann::json object = content;
  if (content.is_array()) {
    object = nlohmann::json::object();
    for (auto const& name : content) {
      if (!name.is_string()) throw_wrong(path, "must be a list of names");
      object[name.template get<std::string>()] = true;
    }
  }
  if (!object.is_object()) throw_wrong(path, "must be an object of fields, or a list of names");
  json_fields fields(object, path, taken, argument, argument_place);
  Description::fields(settings, fields);
  fields.require_all_known();
}

}  // namespace detail
}  // namespace keel
