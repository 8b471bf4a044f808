// Changes the tensors of a batch of any type, and removes its non-finite rows.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <keel/batch_guard/batch_watch.hpp>
#include <keel/checkpoint/batch_fields.hpp>
#include <keel/checkpoint/fields.hpp>
#include <keel/core/batch.hpp>
#include <keel/core/error.hpp>
#include <keel/rule/not_implemented.hpp>
#include <keel/rule/reject_call.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// Replaces each tensor of a batch with `change(tensor)`, and each list of numbers with `change.list(numbers)` if `change` has that member.
template <class Change>
struct change_tensors {
  Change change;
  template <class Field>
  void operator()(char const* name, Field& value) {
    constexpr field_kind kind = kind_of_field<Field>;
    if constexpr (kind == field_kind::tensor) {
      if (value.defined()) value = change(value);
    } else if constexpr (holds_values<Field>) {
      if constexpr (requires { value = change.list(value); }) value = change.list(value);
    } else if constexpr (kind == field_kind::nested) {
      value.visit(*this);
    } else if constexpr (kind == field_kind::map) {
      for (auto& [key, element] : value) (*this)(name, element);
    } else {
      for (auto& element : elements_of(value)) (*this)(name, element);
    }
  }
};
template <class Batch, class Change>
void change_batch(Batch& batch, Change change) {
  change_tensors<Change> archive{std::move(change)};
  fields_of_batch(archive, "batch", batch);
}

/// Selects the rows `row_indices` of every tensor or list that has `rows` rows; leaves the others unchanged.
struct row_selector {
  at::Tensor row_indices;  ///< int64, on the CPU
  std::int64_t rows;
  at::Tensor operator()(at::Tensor const& one) const {
    return one.dim() > 0 && one.size(0) == rows ? one.index_select(0, row_indices.to(one.device())) : one;
  }
  template <class Number>
  std::vector<Number> list(std::vector<Number> const& all) const {
    if (static_cast<std::int64_t>(all.size()) != rows) return all;
    std::vector<Number> kept;
    for (std::int64_t i = 0; i < row_indices.numel(); ++i)
      kept.push_back(all[static_cast<std::size_t>(row_indices.data_ptr<std::int64_t>()[i])]);
    return kept;
  }
};

/// Returns a copy of the batch without its non-finite rows. Returns nullopt if the batch should be used unchanged: all rows are finite, or
/// none is, so that no row would remain. Before changing the copy, calls `on_drop` with the number of rows to remove and the total. Throws
/// error (E12) if no tensor of the batch has its rows as the first dimension.
template <class Batch>
std::optional<Batch> drop_nonfinite_rows(Batch const& batch, c10::function_ref<void(std::int64_t, std::int64_t)> on_drop) {
  if constexpr (!countable_batch<Batch>) {
    return std::nullopt;  // the step rejects it (U14)
  } else if constexpr (std::same_as<Batch, no_batch> || !writable_batch<Batch> || !std::copy_constructible<Batch> ||
                       requires { batch.granularity(); }) {
    reject_call<rule::U60, Batch>();
  } else {
    std::int64_t const rows = batch_traits<Batch>::rows(batch);
    batch_contents contents = contents_of(batch);
    Batch finite = batch;
    if (contents.inputs.empty())
      change_batch(finite, [&](at::Tensor const& one) { return contents.inputs.push_back(one), one; });
    auto const has_rows = [&](at::Tensor const& one) { return one.dim() > 0 && one.size(0) == rows; };
    if (std::none_of(contents.inputs.begin(), contents.inputs.end(), has_rows))
      throw error("E12", "keel::batch_guard::drop found no tensor of the batch with " + std::to_string(rows) +
                             " rows in its first dimension. Use keel::batch_guard::check, or make the rows the first dimension "
                             "of the batch's tensors.");
    at::Tensor const row_indices = finite_rows(contents, rows);
    if (!row_indices.defined()) return std::nullopt;
    on_drop(rows - row_indices.numel(), rows);
    change_batch(finite, row_selector{row_indices, rows});
    return finite;
  }
  return std::nullopt;
}

}  // namespace keel::detail::inline KEEL_MODE
