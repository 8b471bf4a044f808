// Looks at a batch before it trains, for what would waste the update or the run. Usable without a trainer:
//     keel::batch_watch watch({.vocabulary = 50257, .padding = 0});
//     for (auto const& batch : batches)
//       for (keel::batch_finding const& found : watch.look(batch)) std::puts(found.words.c_str());
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <keel/core/batch.hpp>
#include <keel/policy/batch_guard.hpp>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// What a look at a batch may find; policy/batch_guard.hpp says which policy looks for it.
enum class batch_problem : unsigned char {
  nothing_in_it,
  not_finite,
  rows_differ,
  id_below_zero,
  all_labels_ignored,
  rows_repeat,
  batch_repeats,
  labels_equal_inputs,
  row_too_long,
  ids_never_seen
};
/// How many kinds of problems there are.
inline constexpr std::size_t batch_problems = 10;
/// A few words for a record.
char const* to_string(batch_problem which);

/// A problem of one batch.
struct batch_finding {
  batch_problem what;  ///< the problem
  std::int64_t epoch;  ///< 0 where the program does not say it
  std::int64_t batch;  ///< micro-batches of the epoch before it
  std::int64_t row;    ///< the first; -1: of the whole batch
  std::string words;   ///< one sentence with both
};

/// What of a batch goes into the model, and what it is compared with.
struct batch_contents {
  std::vector<at::Tensor> inputs;  ///< what the model takes
  std::vector<at::Tensor> labels;  ///< what its output is compared with
};

/// What a guess knows of labels: how often each occurs, and nothing of a single row.
struct label_guess {
  bool are_classes;  ///< integers, or numbers that are all 0 or 1; else numbers
  double loss;       ///< classes: the entropy of their shares, in nats, which a cross-entropy then has; numbers: their variance
  std::int64_t labels;      ///< that it is drawn from
  std::int64_t in_a_batch;  ///< labels of one, on average: a loss that is their sum is so many times as large
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

template <class Part>
void add_tensors(std::vector<at::Tensor>& to, Part const& part) {
  if constexpr (std::is_same_v<Part, at::Tensor>) {
    if (part.defined()) to.push_back(part);
  } else if constexpr (requires { std::tuple_size<Part>::value; }) {
    std::apply([&](auto const&... one) { (add_tensors(to, one), ...); }, part);
  } else if constexpr (std::is_same_v<Part, std::vector<at::Tensor>>) {
    for (at::Tensor const& one : part) add_tensors(to, one);
  }
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Of pairs, tuples, arrays and vectors the last member has the labels, where there is more than one; of LibTorch's Example the target.
/// A batch of your own says so by `inputs()` and `labels()`, each a tensor or a vector of tensors; of one that does not, nothing is
/// looked at.
template <class Batch>
batch_contents contents_of(Batch const& batch) {
  batch_contents found;
  if constexpr (std::is_same_v<Batch, at::Tensor>) {
    detail::add_tensors(found.inputs, batch);
  } else if constexpr (requires { batch.inputs(), batch.labels(); }) {
    detail::add_tensors(found.inputs, batch.inputs());
    detail::add_tensors(found.labels, batch.labels());
  } else if constexpr (requires { at::Tensor(batch.data), at::Tensor(batch.target); }) {
    detail::add_tensors(found.inputs, at::Tensor(batch.data));
    detail::add_tensors(found.labels, at::Tensor(batch.target));
  } else {
    detail::add_tensors(found.inputs, batch);
    if (found.inputs.size() > 1) {
      found.labels.push_back(std::move(found.inputs.back()));
      found.inputs.pop_back();
    }
  }
  return found;
}

/// Numbers of the rows in which no floating-point value is NaN or infinite, int64; undefined where all rows are such, or none. Later inputs
/// than the first may hold infinities, of which masks are made. Waits for tensors on a device.
at::Tensor finite_rows(batch_contents const& batch, std::int64_t rows);

/// Looks at batches for a loop of your own; a trainer has one. Each rank looks at its own batches.
class batch_watch {
 public:
  /// What it looks for, as keel::batch_guard says.
  explicit batch_watch(batch_guard::settings const& settings) : settings_(settings) {}

  /// False for batch_guard::off.
  bool is_on() const { return settings_.kind != batch_guard::kind::off; }

  /// Where the next batch stands; without it batches are counted.
  void at(std::int64_t epoch, std::int64_t position) { epoch_ = epoch, position_ = position, is_placed_ = true; }

  /// Token ids are the first input of 32 or 64-bit integers with two dimensions or more. Tensors on a device, sparse and quantized ones are
  /// not looked at. Throws data_error (E06) for an id or label that the settings
  /// exclude, with its row.
  template <class Batch>
  std::vector<batch_finding> look(Batch const& batch) {
    if (!is_on()) return {};
    return look_at(contents_of(batch));
  }
  /// The same of tensors that the program names.
  std::vector<batch_finding> look_at(batch_contents const& batch);

  /// The data has come to its end: what comes again from here on does not count as a repetition. Says what the epoch lacked.
  std::vector<batch_finding> end_epoch();
  /// The data went back, as after a rollback, or begins in the middle of an epoch.
  void on_data_rewound();

  /// Of the last batch: the share of its ids that fill rows, and of its labels that count for nothing. Nothing where it is not known.
  std::optional<double> padding() const { return padding_; }
  /// Share of the labels that count for nothing; nothing where it is not known.
  std::optional<double> ignored_labels() const { return ignored_; }

  /// What is said of rows that were left out of the last batch.
  batch_finding dropped(std::int64_t count, std::int64_t rows) const {
    return {batch_problem::not_finite, epoch_, position_, -1,
            place(-1) + std::to_string(count) + " of " + std::to_string(rows) +
                " rows have a value that is not finite, and are left out"};
  }

  /// Once, of the first 40 batches with labels that it looked at.
  std::optional<label_guess> take_guess();

  /// Of what it read of the last batch; 0 where it read nothing.
  std::uint64_t checksum() const { return checksum_; }

  /// True for the first finding of a kind in a run, and for each tenfold: what is said to a person.
  bool is_news(batch_problem which);

 private:
  void look_at_numbers(at::Tensor const& numbers, char const* name, bool allows_infinity, std::vector<batch_finding>& found);
  void look_at_ids(at::Tensor const& ids, std::vector<batch_finding>& found);
  void look_at_labels(at::Tensor const& labels, std::vector<batch_finding>& found);
  void count_labels(at::Tensor const& labels);
  /// Returns a checksum of the tensor.
  std::uint64_t look_for_repeated_rows(at::Tensor const& inputs, std::vector<batch_finding>& found) const;
  void look_for_repeats(std::uint64_t checksum, std::vector<batch_finding>& found);
  void add(std::vector<batch_finding>& to, batch_problem what, std::int64_t row, std::string const& words) const;
  std::string place(std::int64_t row) const;

  batch_guard::settings settings_;
  std::int64_t epoch_ = 0;
  std::int64_t position_ = -1;  ///< of the last batch
  bool is_placed_ = false;      ///< the program says where it stands
  std::int64_t seen_ = 0;
  std::optional<double> padding_;
  std::optional<double> ignored_;
  std::uint64_t checksum_ = 0;
  static constexpr std::size_t remembered = 64;
  std::vector<std::uint64_t> last_;  ///< checksums of the last batches, a ring
  std::uint64_t first_ = 0;          ///< since the data began
  std::size_t next_ = 0;
  std::int64_t alike_ = 0;  ///< batches in a row that were all the same, from the first of the epoch on
  bool all_alike_ = true;
  std::vector<bool> occurred_;  ///< ids of the vocabulary
  bool whole_epoch_ = true;     ///< all of the present one was looked at
  std::array<std::int64_t, batch_problems> counts_{};
  static constexpr std::int64_t counted_batches = 40;
  std::int64_t batches_with_labels_ = 0;
  std::map<std::int64_t, std::int64_t> classes_;  ///< how often each label occurred
  double label_sum_ = 0.0, label_squares_ = 0.0;
  std::int64_t labels_ = 0;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/batch_guard/batch_watch.ipp>
#endif
