// batch_traits: counts the rows and tokens of a batch and slices it along its rows. Specializations exist for:
//   - tensors: the first dimension is the batch dimension;
//   - pairs, tuples and arrays of such types;
//   - std::vector<at::Tensor>: each tensor is a column;
//   - std::vector of any other type: each element is a row;
//   - LibTorch's Example with any target.
// For your own type, specialize batch_traits or provide `rows()` and `slice(begin, end)`. Add `tokens()` if tokens differ from
// rows. oom/cut_batch.hpp lists further optional members.
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

/// A batch type whose rows and tokens keel can count. The first dimension is the batch dimension.
template <class Batch>
concept countable_batch = requires(Batch const& batch) {
  { batch_traits<Batch>::rows(batch) } -> std::convertible_to<std::int64_t>;
  { batch_traits<Batch>::tokens(batch) } -> std::convertible_to<std::int64_t>;
};

/// A batch type that keel can slice along its rows. Required by oom::halve_micro_batch.
template <class Batch>
concept sliceable_batch = countable_batch<Batch> && requires(Batch const& batch, std::int64_t row) {
  { batch_traits<Batch>::slice(batch, row, row) } -> std::convertible_to<Batch>;
};

/// A tensor whose first dimension is the batch dimension.
template <>
struct batch_traits<at::Tensor> {
  static std::int64_t rows(at::Tensor const& batch) { return batch.defined() && batch.dim() > 0 ? batch.size(0) : 0; }
  /// Returns numel() for integer tensors (token ids) of two or more dimensions, and the number of rows otherwise.
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

/// Tuples and pairs of batches. Every member is sliced; rows and tokens are those of the first member.
template <class Tuple>
  requires(detail::is_tuple_of_batches<Tuple>())
struct batch_traits<Tuple> {
  using first = batch_traits<std::remove_cvref_t<std::tuple_element_t<0, Tuple>>>;  ///< the member that is counted
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

/// Columns of a batch: tensors with the same number of rows. Every tensor is sliced; the first one is counted.
template <>
struct batch_traits<std::vector<at::Tensor>> {
  using batch_type = std::vector<at::Tensor>;  ///< the batch type
  static std::int64_t rows(batch_type const& batch) { return batch.empty() ? 0 : batch_traits<at::Tensor>::rows(batch[0]); }
  static std::int64_t tokens(batch_type const& batch) { return batch.empty() ? 0 : batch_traits<at::Tensor>::tokens(batch[0]); }
  static batch_type slice(batch_type const& batch, std::int64_t begin, std::int64_t end) {
    batch_type part;
    part.reserve(batch.size());
    for (at::Tensor const& tensor : batch) part.push_back(tensor.slice(0, begin, end));
    return part;
  }
};

/// A vector whose elements are rows, such as row numbers that the loss function loads, games, or Examples that no transform
/// stacked.
template <class Row>
struct batch_traits<std::vector<Row>> {
  using batch_type = std::vector<Row>;  ///< the batch type
  static std::int64_t rows(batch_type const& batch) { return static_cast<std::int64_t>(batch.size()); }
  static std::int64_t tokens(batch_type const& batch) { return rows(batch); }
  static batch_type slice(batch_type const& batch, std::int64_t begin, std::int64_t end) {
    return batch_type(batch.begin() + begin, batch.begin() + end);
  }
};

/// The batch of a step that takes no data, such as a physical system or an environment. Counts as one row.
struct no_batch {
  friend constexpr bool operator==(no_batch, no_batch) = default;
  /// Lists its fields, of which it has none: an incident keeps the random state alone.
  template <class Archive>
  void visit(Archive& /*archive*/) {}
};
}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {
/// Copies a const-callable, copyable loss function, because an update that runs again may outlive the call. Any other function
/// is held by reference.
template <class LossOf, class Function = std::remove_cvref_t<LossOf>>
using kept_function = std::conditional_t<std::invocable<Function const&> && std::copy_constructible<Function>, Function,
                                         std::remove_reference_t<LossOf>&>;

/// Adapts a loss function without arguments to one that takes a no_batch.
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
/// The type of the public data member `data`. Types that define their own rows() are excluded by resembles_example.
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

/// Types that resemble LibTorch's data::Example: a member `data` and optionally `target`. If the target cannot be sliced, the
/// batch is still countable.
template <detail::resembles_example Example>
struct batch_traits<Example> {
  using data = batch_traits<detail::data_of<Example>>;  ///< the member that is counted
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

/// User types with the members rows(), slice() and optionally tokens().
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

/// Collects the data facts that a batch type and its element types declare.
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
