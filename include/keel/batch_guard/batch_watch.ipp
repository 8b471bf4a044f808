// Definitions for batch_watch.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/ones.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <keel/batch_guard/batch_watch.hpp>
#include <keel/core/error.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/optimizer/vector_kernels.hpp>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

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

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY at::Tensor finite_rows(batch_contents const& batch, std::int64_t rows) {
  at::NoGradGuard const no_grad;
  at::Tensor sound = at::ones({rows}, at::kBool);
  auto const look = [&](at::Tensor const& one, bool allows_infinity) {
    bool const has_rows = one.dim() > 0 && one.size(0) == rows && one.numel() > 0 && one.layout() == at::kStrided;
    if (!has_rows || !at::isFloatingType(one.scalar_type())) return;
    at::Tensor const values = allows_infinity ? at::isnan(one).logical_not() : at::isfinite(one);
    sound = sound.logical_and((values.dim() > 1 ? values.flatten(1).all(1) : values).to(at::kCPU));
  };
  for (at::Tensor const& one : batch.inputs) look(one, &one != &batch.inputs.front());
  for (at::Tensor const& one : batch.labels) look(one, false);
  at::Tensor const numbers = sound.nonzero().squeeze(1);
  return numbers.numel() == 0 || numbers.numel() == rows ? at::Tensor() : numbers;
}

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

KEEL_BODY std::string batch_watch::place(std::int64_t row) const {
  return (epoch_ > 0 ? "epoch " + std::to_string(epoch_) + ", " : "") + "micro-batch " + std::to_string(position_) +
         (row >= 0 ? ", row " + std::to_string(row) : "") + ": ";
}

KEEL_BODY void batch_watch::add(std::vector<batch_finding>& to, batch_problem what, std::int64_t row,
                                std::string const& words) const {
  to.push_back({what, epoch_, position_, row, place(row) + words});
}

KEEL_BODY void batch_watch::look_at_numbers(at::Tensor const& numbers, char const* name, bool allows_infinity,
                                            std::vector<batch_finding>& found) {
  // One pass over the values; only if their sum is not finite are they examined. Few values are summed without LibTorch, whose overhead
  // would dominate.
  constexpr std::int64_t few = 32768;  // above this LibTorch uses several threads
  bool const are_few = numbers.scalar_type() == at::kFloat && numbers.is_contiguous() && numbers.numel() <= few;
  if (std::isfinite(are_few ? detail::sum_of_squares_fp32(numbers.data_ptr<float>(), numbers.numel())
                            : host_value(numbers.sum(at::kFloat))))
    return;
  at::Tensor const is_sound = (allows_infinity ? at::isnan(numbers).logical_not() : at::isfinite(numbers)).contiguous();
  bool const* const sound = is_sound.data_ptr<bool>();
  bool const* const end = sound + is_sound.numel();
  bool const* const first = std::find(sound, end, false);
  if (first == end) return;
  add(found, batch_problem::not_finite, detail::row_of(numbers, first - sound),
      std::to_string(std::count(first, end, false)) + " values of its " + name +
          " are NaN or infinite; one update would spread them to every parameter. Look at the sample, and how it is "
          "normalised.");
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
    throw data_error("E06", place(detail::row_of(ids, outside)) + "token " + std::to_string(value_outside) +
                                " is outside the vocabulary of " + std::to_string(vocabulary) +
                                ". Tokenise the data with the model's own vocabulary.");
  bool const checks = batch_guard::is_extended(settings_);
  if (checks && below >= 0)
    add(found, batch_problem::id_below_zero, detail::row_of(ids, below),
        "an id is below 0, and an embedding has no row for it. Replace it where the data is prepared.");
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
    throw data_error("E06", place(detail::row_of(labels, outside)) + "label " + std::to_string(value_outside) +
                                " is outside the " + std::to_string(classes) +
                                " classes. Look at how labels are numbered: from 0 on, and " +
                                std::to_string(settings_.ignored) + " for what does not count.");
  ignored_ = static_cast<double>(ignored) / static_cast<double>(labels.numel());
  if (ignored == labels.numel())
    add(found, batch_problem::all_labels_ignored, -1,
        "all of its labels are " + std::to_string(settings_.ignored) +
            ", so that its mean loss is 0 / 0. Look at how prompts are masked, and leave such batches out.");
  else if (batch_guard::is_extended(settings_) && below >= 0)
    add(found, batch_problem::id_below_zero, detail::row_of(labels, below),
        "a label is below 0 and is not " + std::to_string(settings_.ignored) +
            ". Name it with keel::batch_guard::ignored if it counts for nothing.");
}

KEEL_BODY void batch_watch::count_labels(at::Tensor const& labels) {
  ++batches_with_labels_;
  if (detail::has_ids(labels)) {
    constexpr std::size_t most = 1 << 16;
    detail::visit_integers(labels, [&](std::int64_t, std::int64_t value) {
      if (value == settings_.ignored) return false;
      ++labels_;
      ++classes_[value];
      return classes_.size() > most;
    });
  } else if (at::isFloatingType(labels.scalar_type()) && classes_.empty()) {
    // A plain loop, because reading the result of an operator would go through the dispatcher.
    at::Tensor const values = labels.detach().to(at::kDouble).contiguous();
    auto const* const value = values.data_ptr<double>();
    labels_ += values.numel();
    for (std::int64_t i = 0; i < values.numel(); ++i) {
      label_sum_ += value[i];
      label_squares_ += value[i] * value[i];
    }
  }
}

KEEL_BODY std::optional<label_guess> batch_watch::take_guess() {
  if (batches_with_labels_ != counted_batches || labels_ < 2) return std::nullopt;
  ++batches_with_labels_;
  auto const all = static_cast<double>(labels_);
  label_guess found{!classes_.empty(), 0.0, labels_, labels_ / counted_batches};
  if (found.are_classes) {
    for (auto const& [value, count] : classes_) {
      double const share = static_cast<double>(count) / all;
      found.loss -= share * std::log(share);
    }
  } else if (label_sum_ > 0.0 && label_sum_ < all && label_sum_ == label_squares_) {
    // Each number equals its square, so it is 0 or 1, as in multi-label data.
    double const share = label_sum_ / all;
    found.are_classes = true;
    found.loss = -share * std::log(share) - (1.0 - share) * std::log1p(-share);
  } else {
    double const mean = label_sum_ / all;
    found.loss = std::max(0.0, label_squares_ / all - mean * mean);
  }
  return std::isfinite(found.loss) ? std::optional(found) : std::nullopt;
}

KEEL_BODY std::uint64_t batch_watch::look_for_repeated_rows(at::Tensor const& inputs, std::vector<batch_finding>& found) const {
  // Copying a non-contiguous tensor would cost more than the check is worth.
  if (!inputs.is_contiguous() || inputs.dim() < 1) return static_cast<std::uint64_t>(inputs.numel());
  std::int64_t const rows = inputs.size(0);
  auto const* const bytes = static_cast<char const*>(inputs.data_ptr());
  std::size_t const size = inputs.nbytes() / static_cast<std::size_t>(rows);
  // A large row is hashed at its beginning and its end only.
  constexpr std::size_t most = 4096;
  // A few equal short rows are common; half of a batch is not. Single values, such as user ids, may repeat.
  constexpr std::int64_t min_rows = 4;
  bool const looks = inputs.dim() >= 2 && rows >= min_rows;
  // A hash table of the rows' hashes, at most half full; 0 marks a free slot.
  std::vector<std::uint64_t> known(looks ? std::bit_ceil(2 * static_cast<std::size_t>(rows)) : 0);
  std::int64_t repeated = 0;
  std::int64_t first_repeated = -1;
  std::uint64_t all = static_cast<std::uint64_t>(inputs.numel());
  for (std::int64_t row = 0; row < rows; ++row) {
    char const* const begin = bytes + static_cast<std::size_t>(row) * size;
    std::uint64_t one = XXH3_64bits(begin, std::min(size, most));
    if (size > most) one = XXH3_64bits_withSeed(begin + size - std::min(size - most, most), std::min(size - most, most), one);
    all = XXH3_64bits_withSeed(&one, sizeof one, all);
    if (!looks) continue;
    std::uint64_t const sum = std::max<std::uint64_t>(one, 1);
    std::size_t place = sum & (known.size() - 1);
    while (known[place] != 0 && known[place] != sum) place = (place + 1) & (known.size() - 1);
    if (known[place] == sum) {
      ++repeated;
      if (first_repeated < 0) first_repeated = row;
    }
    known[place] = sum;
  }
  if (!looks || 2 * repeated < rows) return all;
  add(found, batch_problem::rows_repeat, first_repeated,
      std::to_string(repeated) + " of its " + std::to_string(rows) +
          " rows are copies of others in it. Look at how samples are drawn.");
  return all;
}

KEEL_BODY void batch_watch::look_for_repeats(std::uint64_t checksum, std::vector<batch_finding>& found) {
  bool const all_alike = all_alike_ && (last_.empty() || last_.front() == checksum);
  // The first batch came again after others: a new epoch began in a loop that does not call end_epoch().
  if (!all_alike && !last_.empty() && first_ == checksum) on_data_rewound();
  std::size_t ago = 1;
  while (ago <= last_.size() && last_[(next_ + last_.size() - ago) % last_.size()] != checksum) ++ago;
  bool const is_known = ago <= last_.size();
  if (last_.empty()) first_ = checksum;
  all_alike_ = all_alike;
  alike_ = all_alike_ ? alike_ + 1 : 0;
  // Repeating one batch is a usual test of a model; many repetitions suggest a broken loader.
  constexpr std::int64_t many = 1000;
  if (all_alike_ ? alike_ == many : is_known)
    add(found, batch_problem::batch_repeats, -1,
        (ago == 1 ? std::string("it is the same as the micro-batch before it. ")
                  : "it is the same as the one " + std::to_string(ago) + " micro-batches before it. ") +
            "Look at how the loader advances.");
  if (last_.size() < remembered) {
    last_.push_back(checksum);
  } else {
    last_[next_] = checksum;
  }
  next_ = (next_ + 1) % remembered;
}

KEEL_BODY std::vector<batch_finding> batch_watch::look_at(batch_contents const& batch) {
  std::vector<batch_finding> found;
  if (!is_placed_) position_ = seen_;
  ++seen_;
  padding_.reset();
  ignored_.reset();
  checksum_ = 0;
  at::NoGradGuard const no_grad;
  bool has_ids = false;
  std::uint64_t checksum = 0;
  bool is_read = false;
  auto const add_checksum = [&](std::uint64_t one) {
    checksum = XXH3_64bits_withSeed(&one, sizeof one, checksum);
    is_read = true;
  };
  std::vector<batch_finding> unused;
  for (at::Tensor const& one : batch.inputs) {
    bool const is_first = &one == &batch.inputs.front();
    if (one.numel() == 0) add(found, batch_problem::nothing_in_it, -1, "an input has no element. Leave such batches out.");
    if (!detail::can_be_read(one)) continue;
    // Masks often contain minus infinity.
    if (at::isFloatingType(one.scalar_type())) look_at_numbers(one, "inputs", !is_first, found);
    if (detail::has_ids(one) && one.dim() > 1 && !std::exchange(has_ids, true)) look_at_ids(one, found);
    add_checksum(look_for_repeated_rows(one, is_first ? found : unused));
  }
  for (at::Tensor const& one : batch.labels) {
    if (one.numel() == 0) add(found, batch_problem::nothing_in_it, -1, "it has no label. Leave such batches out.");
    auto const rows_of = [](at::Tensor const& tensor) { return tensor.dim() > 0 ? tensor.size(0) : 1; };
    if (!batch.inputs.empty() && one.numel() > 0) {
      at::Tensor const& input = batch.inputs.front();
      std::int64_t const rows = rows_of(input);
      std::int64_t const labels = rows_of(one);
      // Flattened tokens, one label for several views, and time-first sequences are valid.
      bool const fits = rows == 0 || labels % rows == 0 || rows % labels == 0 || (input.dim() > 1 && input.size(1) == labels);
      if (!fits)
        add(found, batch_problem::rows_differ, -1,
            "its inputs have " + std::to_string(rows) + " rows and its labels " + std::to_string(labels) +
                ". Look at how batches are put together.");
    }
    if (!detail::can_be_read(one)) continue;
    if (at::isFloatingType(one.scalar_type())) look_at_numbers(one, "labels", false, found);
    if (detail::has_ids(one)) look_at_labels(one, found);
    if (batches_with_labels_ < counted_batches) count_labels(one);
    for (at::Tensor const& input : batch.inputs) {
      bool const are_ids = detail::can_be_read(input) && detail::has_ids(input) && input.scalar_type() == one.scalar_type();
      if (!are_ids || input.sizes() != one.sizes() || one.dim() < 2 || !input.equal(one)) continue;
      add(found, batch_problem::labels_equal_inputs, -1,
          "its labels equal its inputs. If the loss does not shift them by one, the model learns to copy: shift the labels.");
    }
    add_checksum(look_for_repeated_rows(one, unused));
  }
  checksum_ = is_read ? checksum : 0;
  if (is_read) look_for_repeats(checksum, found);
  return found;
}

KEEL_BODY std::vector<batch_finding> batch_watch::end_epoch() {
  std::vector<batch_finding> found;
  auto const missing = std::count(occurred_.begin(), occurred_.end(), false);
  if (whole_epoch_ && seen_ > 0 && missing > 0) {
    found.push_back({batch_problem::ids_never_seen, epoch_, position_, -1,
                     std::to_string(missing) + " of the " + std::to_string(settings_.vocabulary) +
                         " ids of the vocabulary did not occur in this epoch; their input embeddings get no gradient."});
  }
  on_data_rewound();
  whole_epoch_ = true;
  occurred_.clear();
  return found;
}

KEEL_BODY void batch_watch::on_data_rewound() {
  whole_epoch_ = false;
  last_.clear();
  next_ = 0;
  alike_ = 0;
  all_alike_ = true;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
