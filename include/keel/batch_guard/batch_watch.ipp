// The bodies of batch_watch.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <keel/batch_guard/batch_watch.hpp>
#include <keel/core/error.hpp>
#include <keel/libtorch/host_value.hpp>
#include <unordered_map>

#include <keel/core/detail/body_begin.inc>

namespace keel {

namespace detail {

KEEL_BODY bool can_be_read(at::Tensor const& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized() && tensor.numel() > 0;
}
KEEL_BODY bool has_ids(at::Tensor const& tensor) {
  return tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt;
}
KEEL_BODY std::int64_t row_of(at::Tensor const& tensor, std::int64_t element) {
  std::int64_t const rows = tensor.dim() > 0 ? tensor.size(0) : 1;
  return element / std::max<std::int64_t>(tensor.numel() / std::max<std::int64_t>(rows, 1), 1);
}

/// Calls `visit(index, value)` for each integer until it returns true.
template <class Visit>
void visit_integers(at::Tensor const& tensor, Visit const& visit) {
  at::Tensor const flat = tensor.contiguous();
  std::int64_t const count = flat.numel();
  if (flat.scalar_type() == at::kLong) {
    std::int64_t const* const values = flat.data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < count; ++i) {
      if (visit(i, values[i])) return;
    }
  } else {
    std::int32_t const* const values = flat.data_ptr<std::int32_t>();
    for (std::int64_t i = 0; i < count; ++i) {
      if (visit(i, static_cast<std::int64_t>(values[i]))) return;
    }
  }
}

}  // namespace detail

KEEL_BODY char const* to_string(batch_problem which) {
  constexpr char const* names[] = {"nothing_in_it",      "not_finite",    "rows_differ",   "id_below_zero",
                                   "all_labels_ignored", "rows_repeat",   "batch_repeats", "labels_equal_inputs",
                                   "row_too_long",       "ids_never_seen"};
  return names[static_cast<std::size_t>(which)];
}

KEEL_BODY bool batch_watch::is_news(batch_problem which) {
  std::int64_t count = ++counts_[static_cast<std::size_t>(which)];
  while (count % 10 == 0) count /= 10;
  return count == 1;
}

KEEL_BODY void batch_watch::add(std::vector<batch_finding>& to, batch_problem what, std::int64_t row,
                                std::string const& words) const {
  to.push_back({what, seen_ - 1, row,
                "micro-batch " + std::to_string(seen_ - 1) + (row >= 0 ? ", row " + std::to_string(row) : "") + ": " + words});
}

KEEL_BODY void batch_watch::look_at_numbers(at::Tensor const& numbers, char const* name, std::vector<batch_finding>& found) {
  // One pass; a sum that overflows is looked at again.
  if (std::isfinite(host_value(numbers.sum(at::kFloat)))) return;
  at::Tensor const is_finite = at::isfinite(numbers).contiguous();
  bool const* const finite = is_finite.data_ptr<bool>();
  bool const* const end = finite + is_finite.numel();
  bool const* const first = std::find(finite, end, false);
  if (first == end) return;
  add(found, batch_problem::not_finite, detail::row_of(numbers, first - finite),
      std::to_string(std::count(first, end, false)) + " of its " + name +
          " are NaN or infinite, which every parameter would become. Look at the sample, and how it is normalised.");
}

KEEL_BODY void batch_watch::look_at_ids(at::Tensor const& ids, std::vector<batch_finding>& found) {
  std::int64_t const vocabulary = settings_.vocabulary;
  if (vocabulary > 0 && occurred_.empty()) occurred_.resize(static_cast<std::size_t>(vocabulary), false);
  std::int64_t padded = 0;
  std::int64_t below = -1;
  std::int64_t outside = -1;
  std::int64_t value_outside = 0;
  detail::visit_integers(ids, [&](std::int64_t i, std::int64_t value) {
    bool const fills = settings_.padding != -1 && value == settings_.padding;
    if (fills) ++padded;
    if (value < 0 && !fills && below < 0) below = i;
    if (vocabulary > 0 && (value < 0 || value >= vocabulary) && !fills) {
      outside = i;
      value_outside = value;
      return true;
    }
    if (vocabulary > 0 && value >= 0 && value < vocabulary) occurred_[static_cast<std::size_t>(value)] = true;
    return false;
  });
  if (outside >= 0)
    throw data_error("E06", "micro-batch " + std::to_string(seen_ - 1) + ", row " +
                                std::to_string(detail::row_of(ids, outside)) + ": token " + std::to_string(value_outside) +
                                " is outside the vocabulary of " + std::to_string(vocabulary) +
                                ". Tokenise the data with the model's own vocabulary.");
  if (below >= 0)
    add(found, batch_problem::id_below_zero, detail::row_of(ids, below),
        "an id is below 0, for which an embedding has no row. Name it with keel::batch_guard::padding if it fills rows.");
  if (settings_.padding != -1) padding_ = static_cast<double>(padded) / static_cast<double>(ids.numel());
  if (settings_.longest > 0 && ids.dim() > 1 && ids.size(1) > settings_.longest)
    add(found, batch_problem::row_too_long, 0,
        "its rows have " + std::to_string(ids.size(1)) + " tokens, and the recipe says " + std::to_string(settings_.longest) +
            " at most. Cut them where the data is prepared.");
}

KEEL_BODY void batch_watch::look_at_labels(at::Tensor const& labels, std::vector<batch_finding>& found) {
  std::int64_t ignored = 0;
  std::int64_t outside = -1;
  std::int64_t value_outside = 0;
  std::int64_t below = -1;
  std::int64_t const classes = settings_.classes;
  detail::visit_integers(labels, [&](std::int64_t i, std::int64_t value) {
    if (value == settings_.ignored) {
      ++ignored;
      return false;
    }
    if (value < 0 && below < 0) below = i;
    if (classes > 0 && (value < 0 || value >= classes)) {
      outside = i;
      value_outside = value;
      return true;
    }
    return false;
  });
  if (outside >= 0)
    throw data_error("E06", "micro-batch " + std::to_string(seen_ - 1) + ", row " +
                                std::to_string(detail::row_of(labels, outside)) + ": label " + std::to_string(value_outside) +
                                " is outside the " + std::to_string(classes) +
                                " classes. Look at how labels are numbered: from 0 on, and " +
                                std::to_string(settings_.ignored) + " for what does not count.");
  ignored_ = static_cast<double>(ignored) / static_cast<double>(labels.numel());
  if (ignored == labels.numel())
    add(found, batch_problem::all_labels_ignored, -1,
        "all of its labels are " + std::to_string(settings_.ignored) +
            ", so that its mean loss is 0 / 0. Look at how prompts are masked, and leave such batches out.");
  else if (below >= 0)
    add(found, batch_problem::id_below_zero, detail::row_of(labels, below),
        "a label is below 0 and is not " + std::to_string(settings_.ignored) +
            ". Name it with keel::batch_guard::ignored if it counts for nothing.");
}

KEEL_BODY void batch_watch::look_for_repeats(at::Tensor const& inputs, std::vector<batch_finding>& found) {
  at::Tensor const flat = inputs.contiguous();
  std::int64_t const rows = flat.dim() > 0 ? flat.size(0) : 0;
  if (rows < 1) return;
  auto const* const bytes = static_cast<char const*>(flat.data_ptr());
  std::size_t const size = flat.nbytes() / static_cast<std::size_t>(rows);
  std::uint64_t all = 0;
  std::unordered_map<std::uint64_t, std::int64_t> first_with;
  std::int64_t repeated = 0;
  std::int64_t first_repeated = -1;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::uint64_t const one = XXH3_64bits(bytes + static_cast<std::size_t>(row) * size, size);
    all = XXH3_64bits_withSeed(&one, sizeof one, all);
    if (!first_with.emplace(one, row).second) {
      if (first_repeated < 0) first_repeated = row;
      ++repeated;
    }
  }
  // A few short rows are often alike; half of a batch is not.
  constexpr std::int64_t least_rows = 4;
  if (rows >= least_rows && 2 * repeated >= rows)
    add(found, batch_problem::rows_repeat, first_repeated,
        std::to_string(repeated) + " of its " + std::to_string(rows) +
            " rows are copies of others in it. Look at how samples are drawn.");

  std::size_t ago = 1;
  while (ago <= last_.size() && last_[(next_ + last_.size() - ago) % last_.size()] != all) ++ago;
  bool const is_known = ago <= last_.size();
  all_alike_ = all_alike_ && (last_.empty() || last_.front() == all);
  alike_ = all_alike_ ? alike_ + 1 : 0;
  // One batch again and again is what a test of the model does, until it is what a broken loader does.
  constexpr std::int64_t many = 1000;
  if (all_alike_ ? alike_ == many : is_known) {
    add(found, batch_problem::batch_repeats, -1,
        "its inputs are those of " + std::to_string(ago) +
            (ago == 1 ? " micro-batch before it. " : " micro-batches before it. ") + "Look at how the loader goes on.");
  }
  if (last_.size() < remembered) {
    last_.push_back(all);
  } else {
    last_[next_] = all;
  }
  next_ = (next_ + 1) % remembered;
}

KEEL_BODY std::vector<batch_finding> batch_watch::look_at(batch_contents const& batch) {
  std::vector<batch_finding> found;
  ++seen_;
  padding_.reset();
  ignored_.reset();
  at::NoGradGuard const no_grad;
  for (at::Tensor const& one : batch.inputs) {
    if (one.numel() == 0) add(found, batch_problem::nothing_in_it, -1, "an input has no element. Leave such batches out.");
    if (!detail::can_be_read(one)) continue;
    if (at::isFloatingType(one.scalar_type())) look_at_numbers(one, "inputs", found);
    if (detail::has_ids(one) && one.dim() > 1) look_at_ids(one, found);
  }
  for (at::Tensor const& one : batch.labels) {
    if (!batch.inputs.empty() && one.dim() > 0 && batch.inputs.front().dim() > 0 && one.size(0) != batch.inputs.front().size(0))
      add(found, batch_problem::rows_differ, -1,
          "its inputs have " + std::to_string(batch.inputs.front().size(0)) + " rows and its labels " +
              std::to_string(one.size(0)) + ". Look at how batches are put together.");
    if (!detail::can_be_read(one)) continue;
    if (at::isFloatingType(one.scalar_type())) look_at_numbers(one, "labels", found);
    if (detail::has_ids(one)) look_at_labels(one, found);
    for (at::Tensor const& input : batch.inputs) {
      if (!detail::can_be_read(input) || input.sizes() != one.sizes() || input.scalar_type() != one.scalar_type()) continue;
      if (!input.equal(one)) continue;
      add(found, batch_problem::labels_equal_inputs, -1,
          "its labels are its inputs. Where the loss does not shift them, the model learns to copy: shift the labels by one.");
    }
  }
  if (!batch.inputs.empty() && detail::can_be_read(batch.inputs.front())) look_for_repeats(batch.inputs.front(), found);
  return found;
}

KEEL_BODY std::vector<batch_finding> batch_watch::end_epoch() {
  std::vector<batch_finding> found;
  auto const missing = std::count(occurred_.begin(), occurred_.end(), false);
  if (whole_epoch_ && seen_ > 0 && missing > 0) {
    found.push_back({batch_problem::ids_never_seen, seen_, -1,
                     std::to_string(missing) + " of the " + std::to_string(settings_.vocabulary) +
                         " ids of the vocabulary never occurred in this epoch, so that their embeddings are not trained."});
  }
  data_moved();
  return found;
}

KEEL_BODY void batch_watch::data_moved() {
  whole_epoch_ = false;
  last_.clear();
  next_ = 0;
  alike_ = 0;
  all_alike_ = true;
}

}  // namespace keel

#include <keel/core/detail/body_end.inc>
