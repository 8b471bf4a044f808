// Writes and reads state that lists its fields with `visit(archive)`; keel/checkpoint/fields.hpp lists the supported field
// types. Values and lists are stored as JSON, tensors in a tensor map under the same path. List elements append their index to
// the path, map entries their key. Reading a field that is missing or that has an unsuitable value throws checkpoint_error
// (E04), which names the field. Reading a tensor creates a new one on the device of the tensor that it replaces.
//     JSON                      C++
//     true, 3, "text"           bool, integers and enums, std::string
//     0.5, "nan", "inf", "-inf" float, double
//     {"base16": "00ff"}        a std::string that is not UTF-8
//     true, "complex128"        a tensor in the map: unchanged, or as pairs of real and imaginary parts; false: undefined
//     [..], {..}, null          std::vector and std::array; std::map and types with visit; an empty std::optional
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <keel/checkpoint/fields.hpp>
#include <keel/checkpoint/tensor_map.hpp>
#include <keel/checkpoint/tensor_slice.hpp>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// The path of a field, as a linked list on the stack. path() builds the string, for tensor names and error messages.
class field_place {
 public:
  field_place(std::string const& path, std::string_view name) : path_(&path), name_(name) {}
  field_place(field_place const& list, std::size_t index) : within_(&list), index_(index) {}
  field_place(field_place const& map, std::string_view key) : within_(&map), name_(key) {}
  std::string path() const;

 private:
  std::string const* path_ = nullptr;
  field_place const* within_ = nullptr;
  std::string_view name_;
  std::optional<std::size_t> index_;
};

// JSON has no NaN and no infinity; they are written as strings.
nlohmann::json number_to_json(double number);

// JSON operations of the archives, declared here so that users of this header do not include the JSON library.
void put(nlohmann::json& to, bool value);
void put(nlohmann::json& to, std::int64_t value);
void put(nlohmann::json& to, std::uint64_t value);
void put(nlohmann::json& to, double value);
void put(nlohmann::json& to, std::string const& value);
void put_null(nlohmann::json& to);
void make_object(nlohmann::json& to);
void make_list(nlohmann::json& to);
/// Appends an element and returns it.
nlohmann::json& add_element(nlohmann::json& list);
nlohmann::json& member(nlohmann::json& object, std::string const& name);
/// Returns false, without changing `value`, for any other type.
bool get(nlohmann::json const& from, bool& value);
bool get(nlohmann::json const& from, std::string& value);
bool get(nlohmann::json const& from, double largest, double& value);
bool get(nlohmann::json const& from, std::int64_t lowest, std::int64_t highest, std::int64_t& value);
bool get(nlohmann::json const& from, std::uint64_t highest, std::uint64_t& value);
bool is_null(nlohmann::json const& from);
bool is_number(nlohmann::json const& from);
bool is_object(nlohmann::json const& from);
/// Returns nullopt if the value is not a list.
std::optional<std::size_t> length_of_list(nlohmann::json const& from);
nlohmann::json const& element(nlohmann::json const& list, std::size_t index);
/// Returns null if the object has no such member.
nlohmann::json const* find(nlohmann::json const& object, std::string const& name);
std::vector<std::string> names_in(nlohmann::json const& object);

/// Inverse of path_of_key; nullopt if `path` is not the path of any key.
std::optional<std::string> key_of_path(std::string const& path);

/// Throws data_error (E05) for a tensor that cannot be saved.
void require_file_takes(std::string const& name, at::Tensor const& tensor);

/// The type that a value is saved as: the underlying type of an enum, any other type itself.
template <class Value>
struct saved_value {
  using type = Value;
};
template <class Value>
  requires std::is_enum_v<Value>
struct saved_value<Value> {
  using type = std::underlying_type_t<Value>;
};

std::string expected_float(double lowest, double largest);
/// Describes the expected value for an error message.
template <class Value>
std::string expected_value(bool was_a_number) {
  using saved = typename saved_value<Value>::type;
  using limits = std::numeric_limits<saved>;
  if constexpr (std::is_same_v<saved, std::string>) {
    return "a string";
  } else if constexpr (std::is_same_v<saved, bool>) {
    return "true or false";
  } else if constexpr (std::is_same_v<saved, float>) {
    return was_a_number ? expected_float(limits::lowest(), limits::max()) : "a number";
  } else if constexpr (std::is_same_v<saved, double>) {
    return "a number";
  } else {
    if (!was_a_number) return "an integer";
    return "an integer between " + std::to_string(limits::min()) + " and " + std::to_string(limits::max());
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
void put_value(nlohmann::json& to, Value const& value) {
  using saved = typename saved_value<Value>::type;
  if constexpr (std::is_floating_point_v<saved>) {
    put(to, static_cast<double>(value));
  } else if constexpr (std::is_same_v<saved, std::string>) {
    put(to, value);
  } else if constexpr (std::is_same_v<saved, bool>) {
    put(to, static_cast<bool>(value));
  } else if constexpr (std::is_signed_v<saved>) {
    put(to, static_cast<std::int64_t>(value));
  } else {
    put(to, static_cast<std::uint64_t>(value));
  }
}
/// Returns false, without changing `value`, if the type cannot represent the JSON value.
template <class Value>
bool get_value(nlohmann::json const& from, Value& value) {
  using saved = typename saved_value<Value>::type;
  using limits = std::numeric_limits<saved>;
  if constexpr (std::is_same_v<saved, std::string>) {
    return get(from, value);
  } else {
    bool found = false;
    auto const take = [&](auto read, auto const&... bounds) {
      found = get(from, bounds..., read);
      if (found) value = static_cast<Value>(read);
    };
    if constexpr (std::is_floating_point_v<saved>) {
      take(0.0, static_cast<double>(limits::max()));
    } else if constexpr (std::is_same_v<saved, bool>) {
      take(false);
    } else if constexpr (std::is_signed_v<saved>) {
      take(std::int64_t{0}, static_cast<std::int64_t>(limits::min()), static_cast<std::int64_t>(limits::max()));
    } else {
      take(std::uint64_t{0}, static_cast<std::uint64_t>(limits::max()));
    }
    return found;
  }
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

class state_writer {
 public:
  /// The references must outlive this. `slices`: of tensors that are divided among ranks; null if none is.
  state_writer(nlohmann::json& object, tensor_map& tensors, std::string path = "", slice_map* slices = nullptr);

  /// Says of which whole tensor the field with this name, which is written next, is this rank's slice.
  void set_slice(char const* name, tensor_slice const& slice) {
    if (slices_ != nullptr) slices_->insert_or_assign(path_ + name, slice);
  }

  template <class Field>
  void optional_field(char const* name, Field& field) {
    (*this)(name, field);
  }
  template <class Field>
  void operator()(char const* name, Field& field) {
    detail::require_field<Field>();
    if constexpr (keel::field<Field>) write(detail::member(object_, name), {path_, std::string_view(name)}, field);
  }

 private:
  using place = detail::field_place;

  template <class Field>
  void write(nlohmann::json& to, place const& at, Field& field) {
    using detail::field_kind;
    constexpr field_kind kind = detail::kind_of_field<Field>;
    if constexpr (kind == field_kind::value) {
      detail::put_value(to, field);
    } else if constexpr (kind == field_kind::tensor) {
      write_tensor(to, at, field);
    } else if constexpr (kind == field_kind::optional) {
      detail::put_null(to);
      if (field) write(to, at, *field);
    } else if constexpr (kind == field_kind::map) {
      detail::make_object(to);
      for (auto& [key, element] : field) {
        std::string const last = detail::path_of_key(key);
        write(detail::member(to, last), {at, std::string_view(last)}, element);
      }
    } else if constexpr (kind == field_kind::nested) {
      state_writer inner(to, tensors_, at.path() + ".", slices_);
      field.visit(inner);
    } else {
      detail::make_list(to);
      std::size_t index = 0;
      for (auto&& element : field) {
        nlohmann::json& added = detail::add_element(to);
        if constexpr (std::is_same_v<typename Field::value_type, bool>) {
          detail::put(added, static_cast<bool>(element));
        } else {
          write(added, {at, index}, element);
        }
        ++index;
      }
    }
  }
  void write_tensor(nlohmann::json& to, place const& at, at::Tensor const& field);

  nlohmann::json& object_;
  tensor_map& tensors_;
  std::string path_;
  slice_map* slices_;
};

class state_reader {
 public:
  static constexpr bool reads = true;

  /// `object` and `tensors` must outlive this. `source`: name of the checkpoint in errors. `keep_missing`: fields that are
  /// missing in the checkpoint keep their value; otherwise they are an error.
  state_reader(nlohmann::json const& object, tensor_map const& tensors, std::string source, std::string path = "",
               bool keep_missing = false)
      : object_(object), tensors_(tensors), source_(std::move(source)), path_(std::move(path)), keep_missing_(keep_missing) {}
  /// Deleted, because a temporary would be destroyed first.
  state_reader(nlohmann::json&&, tensor_map const&, std::string, std::string = "", bool = false) = delete;

  /// Reads a field that checkpoints of older versions of keel do not have; if it is missing, it keeps its value.
  template <class Field>
  void optional_field(char const* name, Field& field) {
    if (detail::find(object_, name) != nullptr) (*this)(name, field);
  }
  template <class Field>
  void operator()(char const* name, Field& field) {
    detail::require_field<Field>();
    if constexpr (keel::field<Field>) {
      place const at(path_, name);
      if (nlohmann::json const* const found = detail::find(object_, name)) {
        read(*found, at, field);
      } else if (!keep_missing_) {
        missing(at);
      }
    }
  }

 private:
  using place = detail::field_place;

  template <class Field>
  void read(nlohmann::json const& from, place const& at, Field& field) {
    using detail::field_kind;
    constexpr field_kind kind = detail::kind_of_field<Field>;
    if constexpr (kind == field_kind::value) {
      if (!detail::get_value(from, field)) wrong(at, detail::expected_value<Field>(detail::is_number(from)));
    } else if constexpr (kind == field_kind::tensor) {
      read_tensor(from, at, field);
    } else if constexpr (kind == field_kind::optional) {
      detail::resize_list(field, detail::is_null(from) ? 0 : 1);
      if (field) read(from, at, *field);
    } else if constexpr (kind == field_kind::map) {
      read_map(from, at, field);
    } else if constexpr (kind == field_kind::nested) {
      if (!detail::is_object(from)) wrong(at, "an object");
      state_reader inner(from, tensors_, source_, at.path() + ".", keep_missing_);
      field.visit(inner);
    } else {
      auto const length = detail::length_of_list(from);
      if (!length) wrong(at, detail::expected_list<Field>());
      if constexpr (kind == field_kind::array) {
        if (*length != field.size()) wrong(at, detail::expected_list<Field>());
      }
      detail::resize_list(field, *length);
      for (std::size_t index = 0; index < *length; ++index) {
        if constexpr (std::is_same_v<typename Field::value_type, bool>) {
          bool one = false;
          read(detail::element(from, index), {at, index}, one);
          field[index] = one;
        } else {
          read(detail::element(from, index), {at, index}, field[index]);
        }
      }
    }
  }

  template <class Map>
  void read_map(nlohmann::json const& from, place const& at, Map& field) {
    if (!detail::is_object(from)) wrong(at, "an object");
    std::erase_if(field, [&](auto const& entry) { return detail::find(from, detail::path_of_key(entry.first)) == nullptr; });
    for (std::string const& name : detail::names_in(from)) {
      auto const key = detail::key_of_path(name);
      if (!key) wrong(at, "an object with valid keys");
      read(*detail::find(from, name), {at, std::string_view(name)}, field.try_emplace(*key).first->second);
    }
  }
  void read_tensor(nlohmann::json const& from, place const& at, at::Tensor& field);

  [[noreturn]] void wrong(place const& at, std::string const& expected) const;
  [[noreturn]] void missing(place const& at) const;

  nlohmann::json const& object_;
  tensor_map const& tensors_;
  std::string source_;
  std::string path_;
  bool keep_missing_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/checkpoint/archive.ipp>
#endif
