// Per-layer measurements at a cadence: norms, update ratios, activations and distributions.
#pragma once

#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <keel/metrics/histogram.hpp>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// What an update measures in each layer.
enum class layer_detail : unsigned char { none, norms, distributions };

/// Figures of the parameters that a module owns directly and that the optimizer has.
struct layer_figures {
  std::string name;             ///< the module's name
  double gradient_norm = 0.0;   ///< L2, before clipping
  double parameter_norm = 0.0;  ///< L2, after the update
  double update_ratio = 0.0;    ///< L2 norm of the update's change, over that of the parameters; about 1e-3 is usual
};

/// Figures of a keel::unit's output in the update's first micro-batch. On a CPU they use an even sample of at most 4,096
/// values.
struct activation_figures {
  std::string name;        ///< the module's name, or "unit.N" for a function
  double mean = 0.0;       ///< mean of the output's elements
  double deviation = 0.0;  ///< standard deviation of the output's elements
};

/// The result of one measurement of the layers.
struct layer_record {
  std::int64_t update = 0;                                       ///< applied updates, including the measured one
  std::vector<layer_figures> layers;                             ///< layers with parameters in the optimizer
  std::vector<activation_figures> activations;                   ///< units that ran
  std::vector<std::pair<std::string, histogram>> distributions;  ///< "gradients/NAME", "weights/NAME", "activations/NAME"
};

}  // namespace keel::inline KEEL_MODE
