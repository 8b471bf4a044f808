// What an open update adds up, and what is known of an update once it is closed.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <keel/core/loss_accumulator.hpp>
#include <keel/core/outcome.hpp>
#include <keel/memory/phase_watch.hpp>
#include <keel/metrics/phase_times.hpp>
#include <keel/step/device_update.hpp>
#include <keel/step/gradients.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::detail {

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

/// One of several losses of an update.
struct named_sum {
  std::string name;
  loss_accumulator loss;
};

/// Of an open update; all of it starts from zero with the next, and where its micro-batches run again.
struct update_sums {
  std::int64_t rows = 0;
  std::int64_t tokens = 0;
  loss_accumulator loss;
  std::vector<named_sum> parts;  ///< in the order in which the program named them first
  std::string exception;         ///< of the loss function, that counts as a loss which is not finite

  loss_accumulator& part(std::string const& name) {
    for (named_sum& one : parts) {
      if (one.name == name) return one.loss;
    }
    return parts.emplace_back(named_sum{name, {}}).loss;
  }
};

/// Where a loss function threw because of a value that is not finite, in words; empty where none did.
inline std::string origin_of(update_sums const& sums) {
  return sums.exception.empty() ? "" : "the loss function threw behind a value that is not finite: " + sums.exception;
}

/// What the host knows of an update before it is applied.
struct update_facts {
  double loss_scale;
  double learning_rate;
  std::int64_t tokens;
  std::int64_t rows;
  bool late = false;                         ///< its verdict is read one update later
  std::optional<memory::usage> memory = {};  ///< what the update took, where memory is counted
  phase_times times = {};                    ///< of a late one
  std::vector<named_sum> parts = {};         ///< of the loss, where the program names them
  std::string origin = {};  ///< of a value that is not finite, where it is known without a look into the update
};

/// What a complete update came to, before anything has changed: clipped gradients, or why they are skipped.
struct update_decision {
  update_facts facts;
  double loss = 0.0;
  double norm = 0.0;
  std::optional<gradients<stage::clipped>> clipped = {};
  std::optional<device_decision> decided = {};  ///< in the place of the rest, where the device decides
  update_limits limits = {};
  std::optional<reason> skip_reason = {};
  std::string where = {};  ///< the first parameter with a non-finite gradient, or the named loss that is not finite
};

/// An update that is under way on the device.
struct pending_update {
  update_facts facts;
  update_limits limits;
  device_result verdict;
};

}  // namespace keel::detail
