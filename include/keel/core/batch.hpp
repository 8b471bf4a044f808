// What keel needs to know of a batch: how many rows it has, a part of it, and how much it counts. Tensors, pairs, tuples,
// arrays and vectors of tensors, vectors of row numbers, and LibTorch's Example are known; for your own type specialise
// batch_traits, or give it `rows()`, `slice(begin, end)` and, if it is not a count of rows, `tokens()`. What else a type may say
// is in oom/cut_batch.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <keel/policy/data.hpp>
#include <keel/policy/facts.hpp>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel {

template <class Batch>
struct batch_traits;

/// A batch that keel can count: rows are the first dimension.
template <class Batch>
concept countable_batch = requires(Batch const& batch) {
  { batch_traits<Batch>::rows(batch) } -> std::convertible_to<std::int64_t>;
  { batch_traits<Batch>::tokens(batch) } -> std::convertible_to<std::int64_t>;
};

/// A batch that keel can cut along its rows; oom::halve_micro_batch needs it.
template <class Batch>
concept sliceable_batch = countable_batch<Batch> && requires(Batch const& batch, std::int64_t row) {
  { batch_traits<Batch>::slice(batch, row, row) } -> std::convertible_to<Batch>;
};

template <>
struct batch_traits<at::Tensor> {
  static std::int64_t rows(at::Tensor const& batch) { return batch.defined() && batch.dim() > 0 ? batch.size(0) : 0; }
  /// Integers are token ids; anything else is counted by rows.
  static std::int64_t tokens(at::Tensor const& batch) {
    return batch.defined() && batch.dim() > 1 && at::isIntegralType(batch.scalar_type(), false) ? batch.numel() : rows(batch);
  }
  static at::Tensor slice(at::Tensor const& batch, std::int64_t begin, std::int64_t end) { return batch.slice(0, begin, end); }
};

namespace detail {
template <class Tuple, std::size_t... Index>
constexpr bool members_are_sliceable(std::index_sequence<Index...>) {
  return (sliceable_batch<std::remove_cvref_t<std::tuple_element_t<Index, Tuple>>> && ...);
}
template <class Tuple>
constexpr bool is_tuple_of_batches() {
  if constexpr (requires { std::tuple_size<Tuple>::value; }) {
    if constexpr (std::tuple_size<Tuple>::value > 0) {
      return members_are_sliceable<Tuple>(std::make_index_sequence<std::tuple_size<Tuple>::value>{});
    }
  }
  return false;
}
}  // namespace detail

/// Tuples and pairs whose members are batches themselves: every member is cut, the first is counted.
template <class Tuple>
  requires(detail::is_tuple_of_batches<Tuple>())
struct batch_traits<Tuple> {
  using first = batch_traits<std::remove_cvref_t<std::tuple_element_t<0, Tuple>>>;
  static std::int64_t rows(Tuple const& batch) { return first::rows(std::get<0>(batch)); }
  static std::int64_t tokens(Tuple const& batch) { return first::tokens(std::get<0>(batch)); }
  static Tuple slice(Tuple const& batch, std::int64_t begin, std::int64_t end) {
    return std::apply(
        [&](auto const&... member) {
          return Tuple{batch_traits<std::remove_cvref_t<decltype(member)>>::slice(member, begin, end)...};
        },
        batch);
  }
};

template <>
struct batch_traits<std::vector<at::Tensor>> {
  using batch_type = std::vector<at::Tensor>;
  static std::int64_t rows(batch_type const& batch) { return batch.empty() ? 0 : batch_traits<at::Tensor>::rows(batch[0]); }
  static std::int64_t tokens(batch_type const& batch) { return batch.empty() ? 0 : batch_traits<at::Tensor>::tokens(batch[0]); }
  static batch_type slice(batch_type const& batch, std::int64_t begin, std::int64_t end) {
    batch_type part;
    part.reserve(batch.size());
    for (at::Tensor const& tensor : batch) part.push_back(tensor.slice(0, begin, end));
    return part;
  }
};

/// Numbers of rows, of which the loss function loads what it needs.
template <std::integral Number>
struct batch_traits<std::vector<Number>> {
  using batch_type = std::vector<Number>;
  static std::int64_t rows(batch_type const& batch) { return static_cast<std::int64_t>(batch.size()); }
  static std::int64_t tokens(batch_type const& batch) { return rows(batch); }
  static batch_type slice(batch_type const& batch, std::int64_t begin, std::int64_t end) {
    return batch_type(batch.begin() + begin, batch.begin() + end);
  }
};

/// Types that look like LibTorch's data::Example: `data` and `target`.
template <class Example>
  requires requires(Example const& example) {
    { example.data } -> std::convertible_to<at::Tensor>;
    { example.target } -> std::convertible_to<at::Tensor>;
  }
struct batch_traits<Example> {
  static std::int64_t rows(Example const& batch) { return batch_traits<at::Tensor>::rows(batch.data); }
  static std::int64_t tokens(Example const& batch) { return batch_traits<at::Tensor>::tokens(batch.data); }
  static Example slice(Example const& batch, std::int64_t begin, std::int64_t end) {
    return Example{batch.data.slice(0, begin, end), batch.target.slice(0, begin, end)};
  }
};

/// A user's type with the members that the header's opening names.
template <class Batch>
  requires requires(Batch const& batch, std::int64_t row) {
    { batch.rows() } -> std::convertible_to<std::int64_t>;
    { batch.slice(row, row) } -> std::convertible_to<Batch>;
  }
struct batch_traits<Batch> {
  static std::int64_t rows(Batch const& batch) { return batch.rows(); }
  static std::int64_t tokens(Batch const& batch) {
    if constexpr (requires { batch.tokens(); }) {
      return batch.tokens();
    } else {
      return batch.rows();
    }
  }
  static Batch slice(Batch const& batch, std::int64_t begin, std::int64_t end) { return batch.slice(begin, end); }
};

/// What a batch's type, or that of a part of it, says of the data.
template <class Batch>
constexpr data::settings batch_facts() {
  data::settings known = facts<slot::data, Batch>();
  if constexpr (requires { std::tuple_size<Batch>::value; }) {
    [&]<std::size_t... Index>(std::index_sequence<Index...>) {
      ((known = known | batch_facts<std::remove_cvref_t<std::tuple_element_t<Index, Batch>>>()), ...);
    }(std::make_index_sequence<std::tuple_size<Batch>::value>{});
  } else if constexpr (requires {
                         typename Batch::value_type;
                         typename Batch::allocator_type;
                       }) {
    known = known | batch_facts<typename Batch::value_type>();
  }
  return known;
}

}  // namespace keel
