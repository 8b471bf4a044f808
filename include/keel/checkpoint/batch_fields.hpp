// A batch as fields that an archive writes and reads (keel/checkpoint/archive.hpp): tensors, pairs, tuples, arrays and vectors of
// tensors, vectors of numbers, LibTorch's Example, and a type of your own that lists its fields with `void visit(auto& archive)`.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <keel/checkpoint/fields.hpp>
#include <keel/core/batch.hpp>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

template <class Batch>
constexpr bool has_fields();
template <class Tuple, std::size_t... Index>
constexpr bool members_have_fields(std::index_sequence<Index...>) {
  return (has_fields<std::remove_cvref_t<std::tuple_element_t<Index, Tuple>>>() && ...);
}
template <class Batch>
constexpr bool is_example = requires(Batch& batch) {
  requires std::same_as<std::remove_cvref_t<decltype(batch.data)>, at::Tensor>;
  requires std::same_as<std::remove_cvref_t<decltype(batch.target)>, at::Tensor>;
};
template <class Batch>
constexpr bool has_fields() {
  if constexpr (field<Batch> || is_example<Batch>) {
    return true;
  } else if constexpr (requires { std::tuple_size<Batch>::value; }) {
    return members_have_fields<Batch>(std::make_index_sequence<std::tuple_size<Batch>::value>{});
  } else {
    return false;
  }
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// A batch that can be written and read again.
template <class Batch>
concept writable_batch =
    detail::has_fields<std::remove_cvref_t<Batch>>() && std::default_initializable<std::remove_cvref_t<Batch>>;

/// The batch under the name `name`, and its members under their numbers: `fields_of_batch(archive, "batch", batch)`.
template <class Archive, class Batch>
void fields_of_batch(Archive& archive, std::string const& name, Batch& batch) {
  if constexpr (field<Batch>) {
    archive(name.c_str(), batch);
  } else if constexpr (detail::is_example<Batch>) {
    archive((name + ".data").c_str(), batch.data);
    archive((name + ".target").c_str(), batch.target);
  } else {
    [&]<std::size_t... Index>(std::index_sequence<Index...>) {
      (fields_of_batch(archive, name + "." + std::to_string(Index), std::get<Index>(batch)), ...);
    }(std::make_index_sequence<std::tuple_size<Batch>::value>{});
  }
}

}  // namespace keel::inline KEEL_MODE
