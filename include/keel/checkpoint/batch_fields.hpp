// Serializes a batch with an archive (keel/checkpoint/archive.hpp). A batch may be a tensor; a pair, tuple, array or vector of
// tensors; a vector of numbers; or LibTorch's Example. A user-defined type must list its fields with
// `void visit(auto& archive)`.
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

/// A batch that an archive can write and read.
template <class Batch>
concept writable_batch =
    detail::has_fields<std::remove_cvref_t<Batch>>() && std::default_initializable<std::remove_cvref_t<Batch>>;

/// Visits the batch under `name`, and its elements under their indices: `fields_of_batch(archive, "batch", batch)`.
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
