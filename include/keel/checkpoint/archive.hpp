// Writes and reads state that lists its fields with `visit(archive)`; keel/checkpoint/fields.hpp says what a field may be.
// Values and lists go to JSON, tensors to a tensor map under the same path; in a list the path goes on with the index, in a map
// with the key. Reading what was not written, or what the field cannot hold, is a checkpoint_error (E04) that names the field;
// a tensor that is read is a new one, on the device of the one that it replaces.
//     JSON                      of
//     true, 3, "text"           bool, integers and enums, std::string
//     0.5, "nan", "inf", "-inf" float, double
//     {"base16": "00ff"}        a std::string that is not UTF-8
//     true, "complex128"        a tensor in the map: as it is, or as pairs of its real and imaginary parts; false: undefined
//     [..], {..}, null          std::vector and std::array; std::map and types with visit; an empty std::optional
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <keel/checkpoint/fields.hpp>
#include <keel/checkpoint/safetensors.hpp>
#include <keel/core/error.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel {

namespace detail {

/// JSON has no NaN and no infinity; they are written as these words.
inline nlohmann::json number_to_json(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  return number;
}
inline bool number_from_json(nlohmann::json const& value, double& number) {
  if (value.is_number()) {
    number = value.get<double>();
  } else if (value == "nan") {
    number = std::numeric_limits<double>::quiet_NaN();
  } else if (value == "inf") {
    number = std::numeric_limits<double>::infinity();
  } else if (value == "-inf") {
    number = -std::numeric_limits<double>::infinity();
  } else {
    return false;
  }
  return true;
}

inline constexpr char const* base16_mark = "base16";
inline nlohmann::json text_to_json(std::string const& text) {
  nlohmann::json value = text;
  try {
    static_cast<void>(value.dump());
    return value;
  } catch (nlohmann::json::type_error const&) {
    std::string digits;
    digits.reserve(2 * text.size());
    for (char const byte : text) digits += base16_of(byte);
    return {{base16_mark, std::move(digits)}};
  }
}
/// Pairs of digits in base 16 as bytes; nothing for any other text.
inline std::optional<std::string> bytes_of_base16(std::string const& digits) {
  if (digits.size() % 2 != 0) return std::nullopt;
  std::string const known = base16_digits;
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    auto const high = known.find(digits[i]);
    auto const low = known.find(digits[i + 1]);
    if (high == std::string::npos || low == std::string::npos) return std::nullopt;
    bytes += static_cast<char>(high << 4 | low);
  }
  return bytes;
}
inline std::optional<std::string> text_from_json(nlohmann::json const& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object() || value.size() != 1 || !value.contains(base16_mark)) return std::nullopt;
  nlohmann::json const& digits = value[base16_mark];
  return digits.is_string() ? bytes_of_base16(digits.get<std::string>()) : std::nullopt;
}

/// The key whose path_of_key `path` is; nothing where it is that of no key.
inline std::optional<std::string> key_of_path(std::string const& path) {
  std::string key;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (path[i] != '%') {
      key += path[i];
      continue;
    }
    auto const byte = i + 2 < path.size() ? bytes_of_base16(path.substr(i + 1, 2)) : std::nullopt;
    if (!byte) return std::nullopt;
    key += *byte;
    i += 2;
  }
  return path_of_key(key) == path ? std::optional(key) : std::nullopt;
}

inline constexpr char const* complex128_mark = "complex128";

/// safetensors has no complex128, and its parts are float64.
inline bool is_saved_as_parts(at::Tensor const& tensor) {
  return tensor.scalar_type() == at::kComplexDouble && tensor.layout() == at::kStrided;
}
/// The tensor that a file holds in place of this one.
inline at::Tensor saved_form(at::Tensor const& tensor) {
  return is_saved_as_parts(tensor) ? at::view_as_real(tensor.detach().resolve_conj().resolve_neg()) : tensor;
}

/// What enums are saved as, and anything else as itself.
template <class Value>
struct saved_value {
  using type = Value;
};
template <class Value>
  requires std::is_enum_v<Value>
struct saved_value<Value> {
  using type = std::underlying_type_t<Value>;
};

/// False for a number that the type cannot hold.
template <class Integer>
bool integer_from_json(nlohmann::json const& value, Integer& integer) {
  using limits = std::numeric_limits<Integer>;
  if (!value.is_number_integer()) return false;
  auto const signed_value = value.get<std::int64_t>();
  if (value.is_number_unsigned() || signed_value >= 0) {
    if (value.get<std::uint64_t>() > static_cast<std::uint64_t>(limits::max())) return false;
  } else {
    if (!limits::is_signed || signed_value < static_cast<std::int64_t>(limits::min())) return false;
  }
  integer = static_cast<Integer>(signed_value);
  return true;
}

/// What an error says that a value is not.
template <class Value>
std::string expected_value(bool was_a_number) {
  using saved = typename saved_value<Value>::type;
  using limits = std::numeric_limits<saved>;
  if constexpr (std::is_same_v<saved, std::string>) {
    return "a text";
  } else if constexpr (std::is_same_v<saved, bool>) {
    return "true or false";
  } else if constexpr (std::is_same_v<saved, float>) {
    char text[80];
    std::snprintf(text, sizeof text, "a number between %.8g and %.8g", static_cast<double>(limits::lowest()),
                  static_cast<double>(limits::max()));
    return was_a_number ? text : "a number";
  } else if constexpr (std::is_same_v<saved, double>) {
    return "a number";
  } else {
    if (!was_a_number) return "an integer";
    auto const text = [](saved value) {
      if constexpr (limits::is_signed) return std::to_string(static_cast<std::int64_t>(value));
      return std::to_string(static_cast<std::uint64_t>(value));
    };
    return "an integer between " + text(limits::min()) + " and " + text(limits::max());
  }
}
template <class Field>
std::string expected_list() {
  if constexpr (kind_of_field<Field> == field_kind::array) {
    return "a list of " + std::to_string(std::tuple_size_v<Field>);
  } else {
    using element = typename Field::value_type;
    bool const counts = std::is_integral_v<element> && !std::is_same_v<element, bool>;
    return counts ? "a list of integers" : std::is_floating_point_v<element> ? "a list of numbers" : "a list";
  }
}

template <class Value>
nlohmann::json value_to_json(Value const& value) {
  using saved = typename saved_value<Value>::type;
  if constexpr (std::is_floating_point_v<saved>) {
    return number_to_json(value);
  } else if constexpr (std::is_same_v<saved, std::string>) {
    return text_to_json(value);
  } else if constexpr (std::is_same_v<saved, bool>) {
    return static_cast<bool>(value);
  } else if constexpr (std::is_signed_v<saved>) {
    return static_cast<std::int64_t>(value);
  } else {
    return static_cast<std::uint64_t>(value);
  }
}
/// False, and `value` as it was, for what the type cannot hold.
template <class Value>
bool value_from_json(nlohmann::json const& from, Value& value) {
  using saved = typename saved_value<Value>::type;
  if constexpr (std::is_floating_point_v<saved>) {
    double number = 0.0;
    if (!number_from_json(from, number)) return false;
    // A conversion of what is beyond the largest float is undefined, and infinity is a word.
    if (std::isfinite(number) && std::abs(number) > static_cast<double>(std::numeric_limits<saved>::max())) return false;
    value = static_cast<saved>(number);
  } else if constexpr (std::is_same_v<saved, std::string>) {
    auto text = text_from_json(from);
    if (!text) return false;
    value = std::move(*text);
  } else if constexpr (std::is_same_v<saved, bool>) {
    if (!from.is_boolean()) return false;
    value = static_cast<Value>(from.get<bool>());
  } else {
    saved integer = 0;
    if (!integer_from_json(from, integer)) return false;
    value = static_cast<Value>(integer);
  }
  return true;
}

}  // namespace detail

class state_writer {
 public:
  state_writer(nlohmann::json& object, tensor_map& tensors, std::string path = "")
      : object_(object), tensors_(tensors), path_(std::move(path)) {
    if (!object_.is_object()) object_ = nlohmann::json::object();
  }

  template <class Field>
  void added(char const* name, Field& field) {
    (*this)(name, field);
  }

  template <class Field>
  void operator()(char const* name, Field& field) {
    detail::require_field<Field>();
    auto const path = [&] { return path_ + name; };
    if constexpr (keel::field<Field>) write(object_[name], path, field);
  }

 private:
  template <class Path, class Field>
  void write(nlohmann::json& to, Path const& path, Field& field) {
    using detail::field_kind;
    constexpr field_kind kind = detail::kind_of_field<Field>;
    if constexpr (kind == field_kind::value) {
      to = detail::value_to_json(field);
    } else if constexpr (kind == field_kind::tensor) {
      to = field.defined();
      if (!field.defined()) return;
      if (detail::is_saved_as_parts(field)) to = detail::complex128_mark;
      tensors_[path()] = detail::saved_form(field);
    } else if constexpr (kind == field_kind::optional) {
      to = nullptr;
      if (field) write(to, path, *field);
    } else if constexpr (kind == field_kind::map) {
      to = nlohmann::json::object();
      for (auto& [key, element] : field) {
        std::string const last = detail::path_of_key(key);
        auto const place = [&] { return path() + "." + last; };
        write(to[last], place, element);
      }
    } else if constexpr (kind == field_kind::nested) {
      state_writer inner(to, tensors_, path() + ".");
      field.visit(inner);
    } else {
      to = nlohmann::json::array();
      for (auto&& element : field) {
        std::size_t const index = to.size();
        auto const place = [&] { return path() + "." + std::to_string(index); };
        if constexpr (std::is_same_v<typename Field::value_type, bool>) {
          to.push_back(static_cast<bool>(element));
        } else {
          to.push_back(nullptr);
          write(to.back(), place, element);
        }
      }
    }
  }

  nlohmann::json& object_;
  tensor_map& tensors_;
  std::string path_;
};

class state_reader {
 public:
  static constexpr bool reads = true;

  /// The object and the tensors outlive this. `source` is what errors call the checkpoint. `keep_missing`: a field that was not
  /// written stays as it is.
  state_reader(nlohmann::json const& object, tensor_map const& tensors, std::string source, std::string path = "",
               bool keep_missing = false)
      : object_(object), tensors_(tensors), source_(std::move(source)), path_(std::move(path)), keep_missing_(keep_missing) {}

  /// A temporary would be gone.
  state_reader(nlohmann::json&&, tensor_map const&, std::string, std::string = "", bool = false) = delete;
  /// A field that checkpoints of older versions of keel do not have, and that then stays as it is.
  template <class Field>
  void added(char const* name, Field& field) {
    if (object_.contains(name)) (*this)(name, field);
  }
  template <class Field>
  void operator()(char const* name, Field& field) {
    detail::require_field<Field>();
    if constexpr (keel::field<Field>) {
      auto const path = [&] { return path_ + name; };
      auto const found = object_.find(name);
      if (found != object_.end()) {
        read(*found, path, field);
      } else if (!keep_missing_) {
        missing(path);
      }
    }
  }

 private:
  template <class Path, class Field>
  void read(nlohmann::json const& from, Path const& path, Field& field) {
    using detail::field_kind;
    constexpr field_kind kind = detail::kind_of_field<Field>;
    if constexpr (kind == field_kind::value) {
      if (!detail::value_from_json(from, field)) wrong(path, detail::expected_value<Field>(from.is_number()));
    } else if constexpr (kind == field_kind::tensor) {
      read_tensor(from, path, field);
    } else if constexpr (kind == field_kind::optional) {
      detail::resize_list(field, from.is_null() ? 0 : 1);
      if (field) read(from, path, *field);
    } else if constexpr (kind == field_kind::map) {
      read_map(from, path, field);
    } else if constexpr (kind == field_kind::nested) {
      if (!from.is_object()) wrong(path, "an object");
      state_reader inner(from, tensors_, source_, path() + ".", keep_missing_);
      field.visit(inner);
    } else {
      if (!from.is_array()) wrong(path, detail::expected_list<Field>());
      if constexpr (kind == field_kind::array) {
        if (from.size() != field.size()) wrong(path, detail::expected_list<Field>());
      }
      detail::resize_list(field, from.size());
      for (std::size_t index = 0; index < from.size(); ++index) {
        auto const place = [&] { return path() + "." + std::to_string(index); };
        if constexpr (std::is_same_v<typename Field::value_type, bool>) {
          bool element = false;
          read(from[index], place, element);
          field[index] = element;
        } else {
          read(from[index], place, field[index]);
        }
      }
    }
  }

  template <class Path>
  void read_tensor(nlohmann::json const& from, Path const& path, at::Tensor& field) {
    bool const in_parts = from == detail::complex128_mark;
    if (!from.is_boolean() && !in_parts) wrong(path, "true or false");
    auto const found = tensors_.find(path());
    bool const expected = in_parts || from.template get<bool>();
    if (expected != (found != tensors_.end())) wrong(path, expected ? "among the tensors" : "without a tensor");
    if (!expected) {
      field = at::Tensor();
      return;
    }
    at::Tensor saved = found->second;
    if (in_parts) {
      bool const pairs = saved.scalar_type() == at::kDouble && saved.dim() > 0 && saved.size(-1) == 2;
      if (!pairs) wrong(path, "a tensor of complex numbers");
      saved = at::view_as_complex(saved.contiguous());
    }
    field = field.defined() ? saved.to(field.device()) : saved;
  }

  template <class Path, class Map>
  void read_map(nlohmann::json const& from, Path const& path, Map& field) {
    if (!from.is_object()) wrong(path, "an object");
    std::erase_if(field, [&](auto const& entry) { return !from.contains(detail::path_of_key(entry.first)); });
    for (auto const& [name, value] : from.items()) {
      auto const place = [&, &last = name] { return path() + "." + last; };
      auto const key = detail::key_of_path(name);
      if (!key) wrong(path, "an object with keys as keel writes them");
      read(value, place, field.try_emplace(*key).first->second);
    }
  }

  template <class Path>
  [[noreturn]] void wrong(Path const& path, std::string const& expected) const {
    // Its checksum was right, so that it is what another program wrote.
    throw checkpoint_error("E04", named(path) + " is not " + expected +
                                      ". Another version of the program wrote it: give the field the type that it had, or use "
                                      "another run directory.");
  }
  template <class Path>
  [[noreturn]] void missing(Path const& path) const {
    throw checkpoint_error("E04", named(path) +
                                      " is not there. Another version of the program wrote it: carry it over with "
                                      "trainer::migrate, take options.accept_changed_recipe, or use another run directory.");
  }
  template <class Path>
  std::string named(Path const& path) const {
    return source_ + ": the field " + path();
  }

  nlohmann::json const& object_;
  tensor_map const& tensors_;
  std::string source_;
  std::string path_;
  bool keep_missing_;
};

}  // namespace keel
