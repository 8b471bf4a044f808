// Writes and reads state that lists its fields with `visit(archive)`: numbers, text and lists go to JSON, tensors to a tensor
// map under the same path. Reading what was not written is a checkpoint_error (E04) that names the field; a tensor that is
// read is a new one, on the device of the one that it replaces.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <keel/checkpoint/safetensors.hpp>
#include <keel/error.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

namespace keel {

namespace detail {

template <class Type>
inline constexpr bool is_vector = false;
template <class Element>
inline constexpr bool is_vector<std::vector<Element>> = true;

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
    if constexpr (std::is_same_v<Field, at::Tensor>) {
      object_[name] = field.defined();
      if (field.defined()) tensors_[path_ + name] = field;
    } else if constexpr (std::is_same_v<Field, double>) {
      object_[name] = detail::number_to_json(field);
    } else if constexpr (detail::is_vector<Field>) {
      auto& list = object_[name] = nlohmann::json::array();
      for (auto const& element : field) {
        if constexpr (std::is_integral_v<typename Field::value_type>) {
          list.push_back(element);
        } else {
          list.push_back(detail::number_to_json(element));
        }
      }
    } else if constexpr (std::is_arithmetic_v<Field> || std::is_same_v<Field, std::string>) {
      object_[name] = field;
    } else {
      state_writer inner(object_[name], tensors_, path_ + name + ".");
      field.visit(inner);
    }
  }

 private:
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
    if (keep_missing_ && !object_.contains(name)) return;
    if constexpr (std::is_same_v<Field, at::Tensor>) {
      if (!at(name).is_boolean()) wrong(name, "true or false");
      auto const found = tensors_.find(path_ + name);
      bool const expected = at(name).template get<bool>();
      if (expected != (found != tensors_.end())) wrong(name, expected ? "among the tensors" : "without a tensor");
      if (!expected) {
        field = at::Tensor();
      } else {
        field = field.defined() ? found->second.to(field.device()) : found->second;
      }
    } else if constexpr (std::is_same_v<Field, double>) {
      if (!detail::number_from_json(at(name), field)) wrong(name, "a number");
    } else if constexpr (detail::is_vector<Field>) {
      auto const& list = at(name);
      if (!list.is_array()) wrong(name, "a list of numbers");
      field.clear();
      for (auto const& element : list) {
        if constexpr (std::is_integral_v<typename Field::value_type>) {
          if (!element.is_number_integer()) wrong(name, "a list of integers");
          field.push_back(element.template get<typename Field::value_type>());
        } else {
          double number = 0.0;
          if (!detail::number_from_json(element, number)) wrong(name, "a list of numbers");
          field.push_back(static_cast<typename Field::value_type>(number));
        }
      }
    } else if constexpr (std::is_same_v<Field, bool>) {
      if (!at(name).is_boolean()) wrong(name, "true or false");
      field = at(name).template get<bool>();
    } else if constexpr (std::is_integral_v<Field>) {
      if (!at(name).is_number_integer()) wrong(name, "an integer");
      field = at(name).template get<Field>();
    } else if constexpr (std::is_same_v<Field, std::string>) {
      if (!at(name).is_string()) wrong(name, "a text");
      field = at(name).template get<std::string>();
    } else {
      if (!at(name).is_object()) wrong(name, "an object");
      state_reader inner(at(name), tensors_, source_, path_ + name + ".", keep_missing_);
      field.visit(inner);
    }
  }

 private:
  nlohmann::json const& at(char const* name) const {
    auto const found = object_.find(name);
    if (found == object_.end()) wrong(name, "there");
    return *found;
  }
  [[noreturn]] void wrong(char const* name, char const* expected) const {
    // Its checksum was right, so that it is what another program wrote.
    throw checkpoint_error("E04", source_ + ": the field " + path_ + name + " is not " + expected +
                                      ". Another version of the program wrote it: carry it over with trainer::migrate, take "
                                      "options.accept_changed_recipe, or use another run directory.");
  }

  nlohmann::json const& object_;
  tensor_map const& tensors_;
  std::string source_;
  std::string path_;
  bool keep_missing_;
};

}  // namespace keel
