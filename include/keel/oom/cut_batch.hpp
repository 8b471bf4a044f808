// Makes a batch smaller: cuts it along its rows into pieces that add up to the same update, or shortens it to its first tokens, which is a
// different experiment. A user-defined batch type may have these members in addition to those in batch.hpp:
//     std::int64_t granularity() const;                 rows that stay together, such as a group of answers to one question
//     mine shortened(std::int64_t tokens) const;        each row's first tokens, for oom::shorten_sequence
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <keel/config/config.hpp>
#include <keel/core/batch.hpp>
#include <keel/core/error.hpp>
#include <numeric>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// Returns the number of rows in a group that must stay together; 1 if there are no groups, or if the batch's slice() keeps them whole.
constexpr std::int64_t update_granularity(config const& c) {
  return c.objective.kind == objective::kind::supervised || c.data.grouped ? 1 : c.objective.group;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Returns the number of rows in a unit that no cut may split. `of_recipe`: the size that the recipe's objective requires.
template <class Batch>
std::int64_t granularity_of(Batch const& batch, std::int64_t of_recipe = 1) {
  static_assert(
      !requires { batch.grain(); } || requires { batch.granularity(); },
      "keel asks a batch for granularity(), and grain() would be ignored. Fix: rename grain().");
  std::int64_t granularity = std::max<std::int64_t>(1, of_recipe);
  if constexpr (requires {
                  { batch.granularity() } -> std::convertible_to<std::int64_t>;
                }) {
    granularity = std::lcm(granularity, std::max<std::int64_t>(1, batch.granularity()));
  }
  return granularity;
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

inline void require_rows(std::int64_t rows, std::int64_t wanted, std::size_t member) {
  if (rows == wanted) return;
  throw data_error(
      "E06", "member " + std::to_string(member + 1) + " of the batch has " + std::to_string(rows) + " rows and the first has " +
                 std::to_string(wanted) +
                 ", so that oom::halve_micro_batch would cut it at another place. Capture what is not a row in the loss "
                 "function, give it a first dimension of rows, or give the batch type rows() and slice(begin, "
                 "end).");
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Throws data_error (E06) if a member of the batch has a different number of rows than the first, because cutting it along its rows would
/// yield a different batch. Does not check types with their own slice().
template <class Batch>
void require_same_rows(Batch const& batch) {
  std::int64_t const rows = batch_traits<Batch>::rows(batch);
  if constexpr (std::same_as<Batch, std::vector<at::Tensor>>) {
    for (std::size_t i = 0; i < batch.size(); ++i) detail::require_rows(batch_traits<at::Tensor>::rows(batch[i]), rows, i);
  } else if constexpr (detail::is_tuple_of_batches<Batch>()) {
    std::size_t member = 0;
    auto const require_one = [&]<class Member>(Member const& one) {
      require_same_rows(one);
      detail::require_rows(batch_traits<Member>::rows(one), rows, member++);
    };
    std::apply([&](auto const&... one) { (require_one(one), ...); }, batch);
  } else if constexpr (requires { requires std::same_as<std::remove_cvref_t<decltype(batch.target)>, at::Tensor>; }) {
    detail::require_rows(batch_traits<at::Tensor>::rows(batch.target), rows, 1);
  }
}

/// Returns the number of pieces that a batch can be cut into.
template <class Batch>
std::int64_t max_pieces(Batch const& batch, std::int64_t granularity) {
  return std::max<std::int64_t>(1, batch_traits<Batch>::rows(batch) / granularity);
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Calls `run(begin, end)` for `wanted` pieces of `rows`, as equal in size as the granularity allows.
template <class Run>
void for_each_range(std::int64_t rows, std::int64_t wanted, std::int64_t granularity, Run const& run) {
  std::int64_t const units = std::max<std::int64_t>(1, rows / granularity);
  std::int64_t const pieces = std::clamp<std::int64_t>(wanted, 1, units);
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    std::int64_t const end = piece + 1 == pieces ? rows : units * (piece + 1) / pieces * granularity;
    run(units * piece / pieces * granularity, end);
  }
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Calls `run(piece, rows)` for `wanted` pieces of a batch, as equal in size as its rows and its granularity allow.
template <class Batch, class Run>
void for_each_piece(Batch const& batch, std::int64_t wanted, std::int64_t granularity, Run const& run) {
  std::int64_t const rows = batch_traits<Batch>::rows(batch);
  if constexpr (sliceable_batch<Batch>) {
    if (std::min(wanted, max_pieces(batch, granularity)) > 1) {
      detail::for_each_range(rows, wanted, granularity, [&](std::int64_t begin, std::int64_t end) {
        run(batch_traits<Batch>::slice(batch, begin, end), end - begin);
      });
      return;
    }
  }
  run(batch, rows);
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

inline bool are_token_ids(at::Tensor const& tensor) {
  return tensor.defined() && tensor.dim() > 1 && at::isIntegralType(tensor.scalar_type(), false);
}
/// Shortens dimension 1 if it is the token dimension.
inline at::Tensor first_tokens(at::Tensor const& tensor, std::int64_t of, std::int64_t tokens) {
  return tensor.defined() && tensor.dim() > 1 && tensor.size(1) == of ? tensor.slice(1, 0, std::min(of, tokens)) : tensor;
}
inline std::int64_t length_of(at::Tensor const& ids) {
  if (are_token_ids(ids)) return ids.size(1);
  throw data_error("E06", c10::str("oom::shorten_sequence cuts token ids of shape [rows, tokens], and this batch is ",
                                   ids.defined() ? ids.sizes() : at::IntArrayRef(), " of ",
                                   ids.defined() ? c10::toString(ids.scalar_type()) : "nothing",
                                   ". Give the batch type shortened(tokens), which knows where its tokens are."));
}

template <class Tuple>
constexpr bool is_tuple_of_tensors() {
  if constexpr (requires { std::tuple_size<Tuple>::value; }) {
    return []<std::size_t... Index>(std::index_sequence<Index...>) {
      return sizeof...(Index) > 0 && (std::same_as<std::remove_cvref_t<std::tuple_element_t<Index, Tuple>>, at::Tensor> && ...);
    }(std::make_index_sequence<std::tuple_size<Tuple>::value>{});
  } else {
    return false;
  }
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// How a batch type is shortened: by its own member, by its batch_traits, or member by member.
template <class Batch>
constexpr bool defines_shortened = requires(Batch const& batch, std::int64_t tokens) {
  { batch.shortened(tokens) } -> std::convertible_to<Batch>;
};
template <class Batch>
constexpr bool traits_define_shortened = requires(Batch const& batch, std::int64_t tokens) {
  { batch_traits<Batch>::shortened(batch, tokens) } -> std::convertible_to<Batch>;
};
template <class Batch>
constexpr bool has_data_and_target = requires(Batch const& batch) {
  Batch{batch.data, batch.target};
  { batch.data } -> std::convertible_to<at::Tensor>;
  { batch.target } -> std::convertible_to<at::Tensor>;
};
template <class Batch>
constexpr bool is_made_of_tensors = std::same_as<Batch, at::Tensor> || std::same_as<Batch, std::vector<at::Tensor>> ||
                                    is_tuple_of_tensors<Batch>() || has_data_and_target<Batch>;

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// A batch type that oom::shorten_sequence can shorten.
template <class Batch>
concept shortenable_batch =
    detail::defines_shortened<Batch> || detail::traits_define_shortened<Batch> || detail::is_made_of_tensors<Batch>;

/// Returns each row's first tokens. Of a batch of several tensors the first contains the token ids, and all tensors of the same length are
/// cut with it. Throws data_error (E06) for a batch without token ids.
template <shortenable_batch Batch>
Batch shortened(Batch const& batch, std::int64_t tokens) {
  if constexpr (detail::defines_shortened<Batch>) {
    return batch.shortened(tokens);
  } else if constexpr (detail::traits_define_shortened<Batch>) {
    return batch_traits<Batch>::shortened(batch, tokens);
  } else if constexpr (std::same_as<Batch, at::Tensor>) {
    return detail::first_tokens(batch, detail::length_of(batch), tokens);
  } else if constexpr (std::same_as<Batch, std::vector<at::Tensor>>) {
    std::int64_t const length = detail::length_of(batch.empty() ? at::Tensor() : batch.front());
    Batch result;
    for (at::Tensor const& one : batch) result.push_back(detail::first_tokens(one, length, tokens));
    return result;
  } else if constexpr (detail::has_data_and_target<Batch>) {
    std::int64_t const length = detail::length_of(batch.data);
    Batch result = batch;
    result.data = detail::first_tokens(batch.data, length, tokens);
    result.target = detail::first_tokens(batch.target, length, tokens);
    return result;
  } else {
    std::int64_t const length = detail::length_of(std::get<0>(batch));
    return std::apply([&](auto const&... one) { return Batch{detail::first_tokens(one, length, tokens)...}; }, batch);
  }
}

}  // namespace keel::inline KEEL_MODE
