// The types that saved state may consist of. One definition for all visitors: checkpoints, the backup before an update, and the
// search for NaN.
//     bool, integers of up to 64 bits, enums, float, double, std::string       values; an enum as its underlying integer
//     at::Tensor                                                               may be undefined
//     std::vector, std::array, std::optional, std::map<std::string, ..>        of any of these types, nested as desired
//     a type that lists its fields with a public `void visit(auto& archive)`   as a list element it must be default-constructible
// Any other type is a compile error (S27) in every visitor, because a skipped field would be lost silently. Not supported:
// optionals of optionals (JSON has only one null), hash maps (no stable order), tuples (their fields have no names).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <keel/libtorch/mode.hpp>
#include <keel/policy/state.hpp>
#include <keel/rule/reject_call.hpp>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

enum class field_kind : unsigned char { none, value, tensor, vector, array, optional, map, nested };

template <class Type>
constexpr bool is_value_field() {
  if constexpr (std::is_enum_v<Type>) {
    return is_value_field<std::underlying_type_t<Type>>();
  } else {
    return (std::is_integral_v<Type> && sizeof(Type) <= 8) || std::is_same_v<Type, float> || std::is_same_v<Type, double> ||
           std::is_same_v<Type, std::string>;
  }
}

/// `kind`: how a field is saved. `holds_values`: true if a copy shares no data with the original.
template <class Type>
struct field_traits {
  static constexpr bool holds_values = std::is_same_v<Type, std::remove_cv_t<Type>> && is_value_field<Type>();
  static constexpr field_kind kind = holds_values ? field_kind::value : saveable<Type> ? field_kind::nested : field_kind::none;
};
template <>
struct field_traits<at::Tensor> {
  static constexpr bool holds_values = false;
  static constexpr field_kind kind = field_kind::tensor;
};
template <class Element, field_kind Kind, bool Allowed>
struct container_traits {
  static constexpr field_kind kind = Allowed && field_traits<Element>::kind != field_kind::none ? Kind : field_kind::none;
  static constexpr bool holds_values = field_traits<Element>::holds_values;
};
template <class Element, class Allocator>
struct field_traits<std::vector<Element, Allocator>>
    : container_traits<Element, field_kind::vector, std::default_initializable<Element> && std::move_constructible<Element>> {};
template <class Element, std::size_t Count>
struct field_traits<std::array<Element, Count>> : container_traits<Element, field_kind::array, true> {};
template <class Element>
struct field_traits<std::optional<Element>>
    : container_traits<Element, field_kind::optional,
                       std::default_initializable<Element> && field_traits<Element>::kind != field_kind::optional> {};
template <class Element, class Order, class Allocator>
struct field_traits<std::map<std::string, Element, Order, Allocator>>
    : container_traits<Element, field_kind::map, std::default_initializable<Element>> {};

template <class Type>
inline constexpr field_kind kind_of_field = field_traits<Type>::kind;
template <class Type>
inline constexpr bool holds_values = field_traits<Type>::holds_values;

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// A type that a checkpoint can store under one name.
template <class Type>
concept field = (detail::kind_of_field<Type> != detail::field_kind::none);

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Rejects an unsupported field (S27). A concept cannot inspect the body of a `visit` template, so every archive calls this for
/// every field.
template <class Field>
constexpr void require_field() {
  if constexpr (!field<Field>) reject_call<rule::S27, Field>();
}

/// Returns the elements of a vector, array or optional that contains tensors or nested state.
template <class Field>
auto elements_of(Field& list) {
  if constexpr (kind_of_field<Field> == field_kind::optional) {
    return std::span<typename Field::value_type>(list ? &*list : nullptr, list ? 1 : 0);
  } else {
    return std::span<typename Field::value_type>(list.data(), list.size());
  }
}
/// Resizes a list and keeps existing elements. For an optional `count` is 0 or 1.
template <class Field>
void resize_list(Field& list, std::size_t count) {
  if constexpr (kind_of_field<Field> == field_kind::vector) {
    list.resize(count);
  } else if constexpr (kind_of_field<Field> == field_kind::optional) {
    if (count == 0) {
      list.reset();
    } else if (!list) {
      list.emplace();
    }
  }
}

inline constexpr char const* base16_digits = "0123456789abcdef";
inline std::string base16_of(char byte) {
  auto const value = static_cast<unsigned char>(byte);
  return {base16_digits[value >> 4], base16_digits[value & 15]};
}

/// Encodes a key for use in a path and in JSON. Distinct keys have distinct encodings, whatever bytes they contain.
inline std::string path_of_key(std::string const& key) {
  std::string path;
  for (char const one : key) {
    bool const plain = one >= ' ' && one <= '~' && one != '.' && one != '%';
    path += plain ? std::string(1, one) : "%" + base16_of(one);
  }
  return path;
}

template <class Use>
struct field_visitor {
  Use& use;
  template <class Field>
  void optional_field(char const* name, Field& field) {
    (*this)(name, field);
  }
  template <class Field>
  void operator()(char const* name, Field& field) {
    require_field<Field>();
    if constexpr (keel::field<Field>) use(name, field);
  }
};
/// Calls `use(name, field)` for each field of a state.
template <class State, class Use>
void for_each_field(State& state, Use&& use) {
  field_visitor<std::remove_reference_t<Use>> archive{use};
  state.visit(archive);
}

template <class State, class Use>
void for_each_leaf(State& state, std::string const& prefix, Use&& use);
template <class Path, class Field, class Use>
void visit_leaves(Path const& path, Field& field, Use& use) {
  constexpr field_kind kind = kind_of_field<Field>;
  if constexpr (kind == field_kind::value || kind == field_kind::tensor) {
    use(path, field);
  } else if constexpr (kind == field_kind::nested) {
    for_each_leaf(field, path() + ".", use);
  } else if constexpr (kind == field_kind::optional) {
    if (field) visit_leaves(path, *field, use);
  } else if constexpr (kind == field_kind::map) {
    for (auto& [key, element] : field)
      visit_leaves([&path, &last = key] { return path() + "." + path_of_key(last); }, element, use);
  } else {
    std::size_t index = 0;
    for (auto&& element : field) {
      auto const place = [&] { return path() + "." + std::to_string(index); };
      if constexpr (std::is_same_v<typename Field::value_type, bool>) {
        bool copy = element;
        visit_leaves(place, copy, use);
      } else {
        visit_leaves(place, element, use);
      }
      ++index;
    }
  }
}
/// Calls `use(path, leaf)` for every value and every tensor in a state. `path()` returns `prefix` followed by the names,
/// separated by dots.
template <class State, class Use>
void for_each_leaf(State& state, std::string const& prefix, Use&& use) {
  for_each_field(state, [&](char const* name, auto& field) { visit_leaves([&] { return prefix + name; }, field, use); });
}

}  // namespace keel::detail::inline KEEL_MODE
