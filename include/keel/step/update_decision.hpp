// What an open update adds up, and what is known of an update once it is closed.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <keel/core/loss.hpp>
#include <keel/core/loss_accumulator.hpp>
#include <keel/core/outcome.hpp>
#include <keel/memory/phase_watch.hpp>
#include <keel/metrics/phase_times.hpp>
#include <keel/step/device_decision.hpp>
#include <keel/step/gradients.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// A flag that is up for as long as this lives.
class scoped_flag {
 public:
  explicit scoped_flag(bool& flag) : flag_(flag) { flag_ = true; }
  scoped_flag(scoped_flag const&) = delete;
  scoped_flag& operator=(scoped_flag const&) = delete;
  ~scoped_flag() { flag_ = false; }

 private:
  bool& flag_;
};

/// How the host reads a number that may be on a device; for the length of a call.
using read_number = c10::function_ref<double(at::Tensor const&)>;

/// The losses of an update by their names, in the order in which the program named them first.
class named_sums {
 public:
  named_sums();
  named_sums(named_sums const&);
  named_sums(named_sums&&) noexcept;
  named_sums& operator=(named_sums const&);
  named_sums& operator=(named_sums&&) noexcept;
  ~named_sums();

  /// Those of one micro-batch's loss, as terms of a sum or of a mean; on the host each costs a read.
  void add(weighted_loss const& loss, at::Device device, bool stays_on_device, bool is_sum, read_number read);
  /// What each came to.
  std::vector<std::pair<std::string, double>> values(read_number read) const;
  /// The first that is not finite, in words; empty where all are.
  std::string first_nonfinite(read_number read) const;
  /// A checksum of the names; 0 without any.
  std::uint32_t names() const;
  /// sums(): sum and weight of each named loss. put(): replaces them by the all-reduced values. `is_sum`: losses are summed over
  /// micro-batches, not averaged.
  std::vector<double> sums(read_number read, bool is_sum) const;
  void put(std::vector<double> const& sums, bool is_sum);
  /// The same on the device, where the losses stay there: doubles.
  at::Tensor sums_on_device(at::Device device, bool is_sum) const;
  void set_sums_on_device(at::Tensor const& sums, bool is_sum);
  /// What each came to there, doubles; and puts them back as the host has read them.
  at::Tensor means_on_device() const;
  void set_means(std::span<double const> means);

 private:
  struct one {
    std::string name;
    loss_accumulator loss;
  };
  loss_accumulator& named(std::string const& name);

  std::vector<one> all_;
};

/// Of an open update; all of it starts from zero with the next, and where its micro-batches run again.
struct update_sums {
  std::int64_t rows = 0;
  std::int64_t tokens = 0;
  loss_accumulator loss;
  named_sums parts;       ///< of the loss, where the program names them
  std::string exception;  ///< of the loss function, that counts as a loss which is not finite
};

/// Where a loss function threw because of a value that is not finite, in words; empty where none did.
std::string origin_of(update_sums const& sums);

/// What the host knows of an update before it is applied.
struct update_facts {
  double loss_scale;
  double learning_rate;
  std::int64_t tokens;
  std::int64_t rows;
  bool late = false;                         ///< its verdict is read one update later
  std::optional<memory::usage> memory = {};  ///< what the update took, where memory is counted
  phase_times times = {};                    ///< of a late one
  named_sums parts = {};                     ///< of the loss, where the program names them
  std::string origin = {};  ///< of a value that is not finite, where it is known without a look into the update
};

/// What a complete update came to, before anything has changed: clipped gradients, or why they are skipped.
struct update_decision {
  update_facts facts;
  double loss = 0.0;
  double norm = 0.0;
  std::optional<gradients<stage::clipped>> clipped = {};
  std::optional<device_decision> decided = {};  ///< in the place of the rest, where the device decides
  bool was_clipped = false;                     ///< of an update that was applied
  update_limits limits = {};
  std::optional<reason> skip_reason = {};
  std::string where = {};  ///< the first parameter with a non-finite gradient, or the named loss that is not finite
};

/// An update that is under way on the device, or one that the host skipped without it.
struct pending_update {
  update_facts facts;
  update_limits limits;
  std::optional<device_result> verdict = {};
  reason skip_reason = reason::nonfinite_loss;  ///< without a verdict
  std::string where = {};                       ///< without a verdict
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/update_decision.ipp>
#endif
