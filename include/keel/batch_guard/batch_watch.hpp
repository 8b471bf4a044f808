// Checks batches before training for problems that would waste an update or the run. Usable without a trainer:
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

/// A problem that a check of a batch may find; policy/batch_guard.hpp lists the policies that check for it.
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
/// The number of kinds of problems.
inline constexpr std::size_t batch_problems = 10;
/// Returns a short description for the record.
char const* to_string(batch_problem which);

/// A problem of one batch.
struct batch_finding {
  batch_problem what;  ///< the problem
  std::int64_t epoch;  ///< 0 if the program does not call at()
  std::int64_t batch;  ///< number of micro-batches of the epoch before it
  std::int64_t row;    ///< the first affected row; -1: the whole batch
  std::string words;   ///< one sentence with the problem and its position
};

/// The tensors of a batch by their role.
struct batch_contents {
  std::vector<at::Tensor> inputs;  ///< inputs of the model
  std::vector<at::Tensor> labels;  ///< labels, which the model's output is compared with
};

/// The loss of a guess that knows only the frequency of each label.
struct label_guess {
  bool are_classes;  ///< labels are integers, or numbers that are all 0 or 1; else other numbers
  double loss;  ///< classes: entropy of their frequencies in nats, comparable with a cross-entropy; numbers: their variance
  std::int64_t labels;      ///< number of labels that it is computed from
  std::int64_t in_a_batch;  ///< labels per batch, on average: the factor for a loss that is summed over labels
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

/// Returns the inputs and labels of a batch. In pairs, tuples, arrays and vectors with several members the last one is the labels; in
/// LibTorch's Example it is the target. A user-defined batch provides `inputs()` and `labels()`, each a tensor or a vector of tensors;
/// otherwise it is not checked.
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

/// Returns the int64 indices of the rows without NaN and infinity in any floating-point value; undefined if all rows are finite, or none.
/// Inputs after the first may contain infinities, which masks use. Synchronizes for tensors on a device.
at::Tensor finite_rows(batch_contents const& batch, std::int64_t rows);

/// Checks the batches of a custom loop; a trainer does so itself. Each rank checks its own batches.
class batch_watch {
 public:
  /// `settings`: the checks of keel::batch_guard.
  explicit batch_watch(batch_guard::settings const& settings) : settings_(settings) {}

  /// Returns false for batch_guard::off.
  bool is_on() const { return settings_.kind != batch_guard::kind::off; }

  /// Sets the position of the next batch. Without it, batches are counted.
  void at(std::int64_t epoch, std::int64_t position) { epoch_ = epoch, position_ = position, is_placed_ = true; }

  /// Checks a batch. Token ids are the first input of 32 or 64-bit integers with at least two dimensions. Tensors on a device, sparse and
  /// quantized tensors are not checked. Throws data_error (E06), with the row, for an id or label that the settings exclude.
  template <class Batch>
  std::vector<batch_finding> look(Batch const& batch) {
    if (!is_on()) return {};
    return look_at(contents_of(batch));
  }
  /// As above, for the given tensors.
  std::vector<batch_finding> look_at(batch_contents const& batch);

  /// Call at the end of the data: later repetitions of its batches are not reported. Returns findings about the whole epoch.
  std::vector<batch_finding> end_epoch();
  /// Call if the data was rewound, as by a rollback, or starts within an epoch.
  void on_data_rewound();

  /// Returns the share of padding in the last batch's ids; nullopt if unknown.
  std::optional<double> padding() const { return padding_; }
  /// Returns the share of ignored labels in the last batch; nullopt if unknown.
  std::optional<double> ignored_labels() const { return ignored_; }

  /// Returns the finding for rows that were left out of the last batch.
  batch_finding dropped(std::int64_t count, std::int64_t rows) const {
    return {batch_problem::not_finite, epoch_, position_, -1,
            place(-1) + std::to_string(count) + " of " + std::to_string(rows) +
                " rows have a value that is not finite, and are left out"};
  }

  /// Returns the guess from the first 40 batches with labels, once; nullopt otherwise.
  std::optional<label_guess> take_guess();

  /// Returns a checksum of the tensors that were read from the last batch; 0 if none were.
  std::uint64_t checksum() const { return checksum_; }

  /// Returns true if a finding should be printed: for the first of its kind in a run and whenever their number grows tenfold.
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
  std::int64_t position_ = -1;  ///< position of the last batch
  bool is_placed_ = false;      ///< the program called at()
  std::int64_t seen_ = 0;
  std::optional<double> padding_;
  std::optional<double> ignored_;
  std::uint64_t checksum_ = 0;
  static constexpr std::size_t remembered = 64;
  std::vector<std::uint64_t> last_;  ///< checksums of the last batches, a ring buffer
  std::uint64_t first_ = 0;          ///< checksum of the first batch since the start of the data
  std::size_t next_ = 0;
  std::int64_t alike_ = 0;  ///< number of equal batches in a row since the start of the epoch
  bool all_alike_ = true;
  std::vector<bool> occurred_;  ///< per id of the vocabulary
  bool whole_epoch_ = true;     ///< every batch of this epoch was checked
  std::array<std::int64_t, batch_problems> counts_{};
  static constexpr std::int64_t counted_batches = 40;
  std::int64_t batches_with_labels_ = 0;
  std::map<std::int64_t, std::int64_t> classes_;  ///< number of occurrences per label
  double label_sum_ = 0.0, label_squares_ = 0.0;
  std::int64_t labels_ = 0;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/batch_guard/batch_watch.ipp>
#endif
