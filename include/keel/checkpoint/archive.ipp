// Definitions for archive.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include <cmath>
#include <cstdio>
#include <keel/checkpoint/archive.hpp>
#include <keel/checkpoint/safetensors_writer.hpp>
#include <keel/core/error.hpp>
#include <nlohmann/json.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY std::string field_place::path() const {
  if (path_ != nullptr) return *path_ + std::string(name_);
  return within_->path() + "." + (index_ ? std::to_string(*index_) : std::string(name_));
}

KEEL_BODY nlohmann::json number_to_json(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  return number;
}

inline constexpr char const* base16_mark = "base16";
/// Decodes hexadecimal digits to bytes; nullopt for any other text.
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
KEEL_BODY std::optional<std::string> key_of_path(std::string const& path) {
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
/// safetensors has no complex128; such a tensor is saved as float64 parts.
inline bool is_saved_as_parts(at::Tensor const& tensor) {
  return tensor.scalar_type() == at::kComplexDouble && tensor.layout() == at::kStrided;
}
/// Returns the tensor that is written to the file for this one.
inline at::Tensor saved_form(at::Tensor const& tensor) {
  return is_saved_as_parts(tensor) ? at::view_as_real(tensor.detach().resolve_conj().resolve_neg()) : tensor;
}
KEEL_BODY void require_file_takes(std::string const& name, at::Tensor const& tensor) {
  tensor_map const one{{name, saved_form(tensor)}};
  static_cast<void>(safetensors_writer(one, {}));
}

KEEL_BODY void put(nlohmann::json& to, bool value) { to = value; }
KEEL_BODY void put(nlohmann::json& to, std::int64_t value) { to = value; }
KEEL_BODY void put(nlohmann::json& to, std::uint64_t value) { to = value; }
KEEL_BODY void put(nlohmann::json& to, double value) { to = number_to_json(value); }
KEEL_BODY void put(nlohmann::json& to, std::string const& value) {
  to = value;
  try {
    static_cast<void>(to.dump());
  } catch (nlohmann::json::type_error const&) {
    std::string digits;
    digits.reserve(2 * value.size());
    for (char const byte : value) digits += base16_of(byte);
    to = {{base16_mark, std::move(digits)}};
  }
}
KEEL_BODY void put_null(nlohmann::json& to) { to = nullptr; }
KEEL_BODY void make_object(nlohmann::json& to) { to = nlohmann::json::object(); }
KEEL_BODY void make_list(nlohmann::json& to) { to = nlohmann::json::array(); }
KEEL_BODY nlohmann::json& add_element(nlohmann::json& list) {
  list.push_back(nullptr);
  return list.back();
}
KEEL_BODY nlohmann::json& member(nlohmann::json& object, std::string const& name) { return object[name]; }

KEEL_BODY bool get(nlohmann::json const& from, bool& value) {
  if (!from.is_boolean()) return false;
  value = from.get<bool>();
  return true;
}
KEEL_BODY bool get(nlohmann::json const& from, std::string& value) {
  if (from.is_string()) {
    value = from.get<std::string>();
    return true;
  }
  if (!from.is_object() || from.size() != 1 || !from.contains(base16_mark)) return false;
  nlohmann::json const& digits = from[base16_mark];
  auto const bytes = digits.is_string() ? bytes_of_base16(digits.get<std::string>()) : std::nullopt;
  if (bytes) value = *bytes;
  return bytes.has_value();
}
KEEL_BODY bool get(nlohmann::json const& from, double largest, double& value) {
  if (from.is_number()) {
    auto const number = from.get<double>();
    // Converting a number beyond the largest float is undefined behaviour; infinity is stored as a string.
    if (std::isfinite(number) && std::abs(number) > largest) return false;
    value = number;
  } else if (from == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (from == "inf") {
    value = std::numeric_limits<double>::infinity();
  } else if (from == "-inf") {
    value = -std::numeric_limits<double>::infinity();
  } else {
    return false;
  }
  return true;
}
KEEL_BODY bool get(nlohmann::json const& from, std::int64_t lowest, std::int64_t highest, std::int64_t& value) {
  if (!from.is_number_integer()) return false;
  if (from.is_number_unsigned() && from.get<std::uint64_t>() > static_cast<std::uint64_t>(highest)) return false;
  auto const number = from.get<std::int64_t>();
  if (number < lowest || number > highest) return false;
  value = number;
  return true;
}
KEEL_BODY bool get(nlohmann::json const& from, std::uint64_t highest, std::uint64_t& value) {
  if (!from.is_number_integer()) return false;
  if (!from.is_number_unsigned() && from.get<std::int64_t>() < 0) return false;
  auto const number = from.get<std::uint64_t>();
  if (number > highest) return false;
  value = number;
  return true;
}
KEEL_BODY bool is_null(nlohmann::json const& from) { return from.is_null(); }
KEEL_BODY bool is_number(nlohmann::json const& from) { return from.is_number(); }
KEEL_BODY bool is_object(nlohmann::json const& from) { return from.is_object(); }
KEEL_BODY std::optional<std::size_t> length_of_list(nlohmann::json const& from) {
  return from.is_array() ? std::optional(from.size()) : std::nullopt;
}
KEEL_BODY nlohmann::json const& element(nlohmann::json const& list, std::size_t index) { return list[index]; }
KEEL_BODY nlohmann::json const* find(nlohmann::json const& object, std::string const& name) {
  auto const found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}
KEEL_BODY std::vector<std::string> names_in(nlohmann::json const& object) {
  std::vector<std::string> names;
  for (auto const& [name, value] : object.items()) names.push_back(name);
  return names;
}

KEEL_BODY std::string expected_float(double lowest, double largest) {
  char text[80];
  std::snprintf(text, sizeof text, "a number between %.8g and %.8g", lowest, largest);
  return text;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY state_writer::state_writer(nlohmann::json& object, tensor_map& tensors, std::string path, slice_map* slices)
    : object_(object), tensors_(tensors), path_(std::move(path)), slices_(slices) {
  if (!object_.is_object()) object_ = nlohmann::json::object();
}

KEEL_BODY void state_writer::write_tensor(nlohmann::json& to, place const& at, at::Tensor const& field) {
  to = field.defined();
  if (!field.defined()) return;
  if (detail::is_saved_as_parts(field)) to = detail::complex128_mark;
  tensors_[at.path()] = detail::saved_form(field);
}

KEEL_BODY void state_reader::read_tensor(nlohmann::json const& from, place const& at, at::Tensor& field) {
  bool const in_parts = from == detail::complex128_mark;
  if (!from.is_boolean() && !in_parts) wrong(at, "true or false");
  auto const found = tensors_.find(at.path());
  bool const expected = in_parts || from.get<bool>();
  if (expected != (found != tensors_.end())) wrong(at, expected ? "among the tensors" : "an undefined tensor");
  if (!expected) {
    field = at::Tensor();
    return;
  }
  at::Tensor saved = found->second;
  if (in_parts) {
    bool const pairs = saved.scalar_type() == at::kDouble && saved.dim() > 0 && saved.size(-1) == 2;
    if (!pairs) wrong(at, "a tensor of complex numbers");
    saved = at::view_as_complex(saved.contiguous());
  }
  field = field.defined() ? saved.to(field.device()) : saved;
}

KEEL_BODY void state_reader::wrong(place const& at, std::string const& expected) const {
  // The checksum matched, so another program wrote this.
  throw checkpoint_error(
      "E04",
      source_ + ": the field " + at.path() + " is not " + expected +
          ". Another version of the program wrote it: restore the former type of the field, or use another run directory.");
}
KEEL_BODY void state_reader::missing(place const& at) const {
  throw checkpoint_error("E04", source_ + ": the field " + at.path() +
                                    " is missing. Another version of the program wrote the checkpoint: convert it with "
                                    "trainer::migrate, set options.accept_changed_recipe, or use another run directory.");
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
