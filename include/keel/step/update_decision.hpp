// The sums of an open update, and the decision about a complete one.
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

/// Sets a flag for its own lifetime.
class scoped_flag {
 public:
  explicit scoped_flag(bool& flag) : flag_(flag) { flag_ = true; }
  scoped_flag(scoped_flag const&) = delete;
  scoped_flag& operator=(scoped_flag const&) = delete;
  ~scoped_flag() { flag_ = false; }

 private:
  bool& flag_;
};

/// Reads a scalar that may be on a device. Valid only during the call that receives it.
using read_number = c10::function_ref<double(at::Tensor const&)>;

/// The named losses of an update, in the order of first use.
class named_sums {
 public:
  named_sums();
  named_sums(named_sums const&);
  named_sums(named_sums&&) noexcept;
  named_sums& operator=(named_sums const&);
  named_sums& operator=(named_sums&&) noexcept;
  ~named_sums();

  /// Adds the named losses of one micro-batch. `is_sum`: as terms of a sum, not of a mean. Calls `read` for each unless `stays_on_device`.
  void add(weighted_loss const& loss, at::Device device, bool stays_on_device, bool is_sum, read_number read);
  /// The name and mean of each loss.
  std::vector<std::pair<std::string, double>> values(read_number read) const;
  /// Describes the first non-finite loss, as "the loss NAME"; empty if all are finite.
  std::string first_nonfinite(read_number read) const;
  /// A checksum of the names; 0 if there are none.
  std::uint32_t names_checksum() const;
  /// sums(): sum and weight of each named loss. set_sums(): replaces them with the all-reduced values. `is_sum`: losses are summed over
  /// micro-batches, not averaged.
  std::vector<double> sums(read_number read, bool is_sum) const;
  void set_sums(std::vector<double> const& sums, bool is_sum);
  /// As above for losses that stay on the device; doubles.
  at::Tensor sums_on_device(at::Device device, bool is_sum) const;
  void set_sums_on_device(at::Tensor const& sums, bool is_sum);
  /// means_on_device(): the mean of each loss as doubles on the device. set_means(): replaces them with the values that the host has read.
  at::Tensor means_on_device() const;
  void set_means(std::span<double const> means);

 private:
  struct named_loss_sum {
    std::string name;
    loss_accumulator loss;
  };
  loss_accumulator& named(std::string const& name);

  std::vector<named_loss_sum> all_;
};

/// Sums of the open update. Reset for the next update and for a retry.
struct update_sums {
  std::int64_t rows = 0;
  std::int64_t tokens = 0;
  loss_accumulator loss;
  named_sums named_losses;
  std::string exception;  ///< message of a loss function that threw because of a non-finite value
};

/// Describes a loss function that threw because of a non-finite value; empty if none did.
std::string origin_of(update_sums const& sums);

/// Facts about an update that the host knows before applying it.
struct update_facts {
  double loss_scale;
  double learning_rate;
  std::int64_t tokens;
  std::int64_t rows;
  bool is_deferred = false;                  ///< the device decided; the host read its decision one update later
  std::optional<memory::usage> memory = {};  ///< memory usage, if it is tracked
  phase_times times = {};                    ///< times of a deferred update
  named_sums named_losses = {};
  std::string origin = {};  ///< origin of a non-finite value, if known without tracing the update
};

/// The decision about a complete update, before any parameter changes: clipped gradients, or the reason to skip.
struct update_decision {
  update_facts facts;
  double loss = 0.0;
  double norm = 0.0;
  std::optional<gradients<stage::clipped>> clipped = {};
  std::optional<device_decision> decided = {};  ///< set instead of `clipped` if the device decides
  bool was_clipped = false;                     ///< valid for an applied update
  update_limits limits = {};
  std::optional<reason> skip_reason = {};
  std::string where = {};  ///< the first parameter with a non-finite gradient, or the non-finite buffer, named loss or rank
};

/// A deferred update: pending on the device, or skipped by the host.
struct pending_update {
  update_facts facts;
  update_limits limits;
  std::optional<device_result> result = {};
  reason skip_reason = reason::nonfinite_loss;  ///< set if `result` is empty
  std::string where = {};                       ///< set if `result` is empty
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/update_decision.ipp>
#endif
