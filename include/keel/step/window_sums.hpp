// What an open window adds up, and what is known of a window once it is closed.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <keel/memory/phase_watch.hpp>
#include <keel/step/device_update.hpp>
#include <keel/step/gradients.hpp>
#include <keel/step/outcome.hpp>
#include <limits>
#include <optional>
#include <string>
#include <utility>

namespace keel::detail {

/// The weighted sum of mean losses: on the host, or on the device for a window that is decided there.
class loss_tally {
 public:
  double weight = 0.0;

  void add(double mean, double of) {
    sum_ += mean * of;
    weight += of;
  }
  void add_on_device(at::Tensor const& mean, double of) {
    at::Tensor const part = mean.detach().to(at::kDouble).reshape({}) * of;
    device_sum_ = device_sum_.defined() ? device_sum_ + part : part;
    weight += of;
  }
  void add(loss_tally const& other) {
    sum_ += other.sum_;
    weight += other.weight;
    if (!other.device_sum_.defined()) return;
    device_sum_ = device_sum_.defined() ? device_sum_ + other.device_sum_ : other.device_sum_;
  }

  /// NaN where only the device knows.
  double mean() const { return device_sum_.defined() ? std::numeric_limits<double>::quiet_NaN() : sum_ / weight; }
  /// A double scalar.
  at::Tensor mean_on_device() const { return device_sum_ / weight; }

 private:
  double sum_ = 0.0;
  at::Tensor device_sum_;
};

/// A flag that is up for as long as this lives.
class raised {
 public:
  explicit raised(bool& flag) : flag_(flag) { flag_ = true; }
  raised(raised const&) = delete;
  raised& operator=(raised const&) = delete;
  ~raised() { flag_ = false; }

 private:
  bool& flag_;
};

/// Of an open window; all of it begins anew with the next, and where its micro-batches run again.
struct window_sums {
  std::int64_t rows = 0;
  std::int64_t tokens = 0;
  loss_tally loss;
};

/// What the host knows of a window when its update begins.
struct window_facts {
  double loss_scale;
  double learning_rate;
  std::int64_t tokens;
  std::int64_t rows;
  bool late = false;                         ///< its verdict is read one update later
  std::optional<memory::usage> memory = {};  ///< what the window took, where somebody counts
};

/// What a complete window came to, before anything has changed: clipped gradients, or why they are left out.
struct window_conclusion {
  window_facts window;
  double loss = 0.0;
  double norm = 0.0;
  std::optional<gradients<stage::clipped>> clipped = {};
  std::optional<device_decision> decided = {};  ///< in the place of the rest, where the device decides
  update_limits limits = {};
  std::optional<reason> left_out = {};
  std::string where = {};  ///< the first parameter with a non-finite gradient
};

/// An update that is under way on the device.
struct pending_update {
  window_facts window;
  update_limits limits;
  device_verdict verdict;
};

}  // namespace keel::detail
