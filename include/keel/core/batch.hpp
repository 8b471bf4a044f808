// What keel needs to know of a batch: how many rows it has, a part of it, and how much it counts. Tensors, pairs, tuples and
// arrays of tensors, vectors of tensors, which are its columns, vectors of anything else, which are its rows, and LibTorch's Example
// with any target are known; for your own type specialise batch_traits, or give it `rows()`, `slice(begin, end)` and, if it is not a count of rows, `tokens()`. What else a type may say
// is in oom/cut_batch.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <keel/policy/data.hpp>
#include <keel/policy/facts.hpp>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

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

/// A tensor: its first dimension are rows.
template <>
struct batch_traits<at::Tensor> {
  static std::int64_t rows(at::Tensor const& batch) { return batch.defined() && batch.dim() > 0 ? batch.size(0) : 0; }
  /// Integers are token ids; anything else is counted by rows.
  static std::int64_t tokens(at::Tensor const& batch) {
    return batch.defined() && batch.dim() > 1 && at::isIntegralType(batch.scalar_type(), false) ? batch.numel() : rows(batch);
  }
  static at::Tensor slice(at::Tensor const& batch, std::int64_t begin, std::int64_t end) { return batch.slice(0, begin, end); }
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {
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
}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Tuples and pairs whose members are batches themselves: every member is cut, the first is counted.
template <class Tuple>
  requires(detail::is_tuple_of_batches<Tuple>())
struct batch_traits<Tuple> {
  using first = batch_traits<std::remove_cvref_t<std::tuple_element_t<0, Tuple>>>;  ///< what counts
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

/// Columns of a batch, as tensors with the same rows: every one is cut, the first is counted.
template <>
struct batch_traits<std::vector<at::Tensor>> {
  using batch_type = std::vector<at::Tensor>;  ///< the batch
  static std::int64_t rows(batch_type const& batch) { return batch.empty() ? 0 : batch_traits<at::Tensor>::rows(batch[0]); }
  static std::int64_t tokens(batch_type const& batch) { return batch.empty() ? 0 : batch_traits<at::Tensor>::tokens(batch[0]); }
  static batch_type slice(batch_type const& batch, std::int64_t begin, std::int64_t end) {
    batch_type part;
    part.reserve(batch.size());
    for (at::Tensor const& tensor : batch) part.push_back(tensor.slice(0, begin, end));
    return part;
  }
};

/// An element is a row: a number of which the loss function loads what it needs, a game, an image with its boxes, an Example that
/// no transform stacked.
template <class Row>
struct batch_traits<std::vector<Row>> {
  using batch_type = std::vector<Row>;  ///< the batch
  static std::int64_t rows(batch_type const& batch) { return static_cast<std::int64_t>(batch.size()); }
  static std::int64_t tokens(batch_type const& batch) { return rows(batch); }
  static batch_type slice(batch_type const& batch, std::int64_t begin, std::int64_t end) {
    return batch_type(batch.begin() + begin, batch.begin() + end);
  }
};

/// The batch of a step that takes none: a physical system, an environment that the loss function plays in. One row.
struct no_batch {
  friend constexpr bool operator==(no_batch, no_batch) = default;
};
}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {
/// A copy of a loss function without a batch may outlive the call, for an update that runs again; one that keeps state is the caller's.
template <class LossOf, class Function = std::remove_cvref_t<LossOf>>
using kept_function = std::conditional_t<std::invocable<Function const&> && std::copy_constructible<Function>, Function,
                                         std::remove_reference_t<LossOf>&>;

/// A loss function without a batch, as one with it.
template <class LossOf>
struct without_batch {
  LossOf call;
  decltype(auto) operator()(no_batch) const
    requires std::invocable<std::remove_reference_t<LossOf> const&> || std::is_reference_v<LossOf>
  {
    return call();
  }
};
}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {
template <>
struct batch_traits<no_batch> {
  static std::int64_t rows(no_batch) { return 1; }
  static std::int64_t tokens(no_batch) { return 1; }
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {
/// The type of a public member `data` or `target`, without what the type's own rows() and slice() would say better.
template <class Example>
using data_of = std::remove_cvref_t<decltype(std::declval<Example const&>().data)>;
template <class Example>
using target_of = std::remove_cvref_t<decltype(std::declval<Example const&>().target)>;

template <class Example>
concept resembles_example = requires(Example const& example) {
  requires std::is_member_object_pointer_v<decltype(&Example::data)>;
  requires countable_batch<data_of<Example>>;
} && !requires(Example const& example) { example.rows(); };
template <class Example>
concept has_target = requires(Example const& example) { example.target; };
template <class Example>
constexpr bool is_sliceable_example() {
  if constexpr (has_target<Example>) {
    return sliceable_batch<data_of<Example>> && sliceable_batch<target_of<Example>>;
  } else {
    return sliceable_batch<data_of<Example>>;
  }
}
}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Types that look like LibTorch's data::Example: `data`, and `target` unless there is none. One whose target keel cannot cut is
/// counted all the same.
template <detail::resembles_example Example>
struct batch_traits<Example> {
  using data = batch_traits<detail::data_of<Example>>;  ///< what counts
  static std::int64_t rows(Example const& batch) { return data::rows(batch.data); }
  static std::int64_t tokens(Example const& batch) { return data::tokens(batch.data); }
  static Example slice(Example const& batch, std::int64_t begin, std::int64_t end)
    requires(detail::is_sliceable_example<Example>())
  {
    if constexpr (detail::has_target<Example>) {
      return Example{data::slice(batch.data, begin, end),
                     batch_traits<detail::target_of<Example>>::slice(batch.target, begin, end)};
    } else {
      return Example{data::slice(batch.data, begin, end)};
    }
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

}  // namespace keel::inline KEEL_MODE
