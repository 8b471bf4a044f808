// What a run looks at in each layer, at a cadence: norms, how much an update moves the weights, activations, distributions.
#pragma once

#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <keel/metrics/histogram.hpp>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// How much of it an update looks at.
enum class layer_detail : unsigned char { none, norms, distributions };

/// Of the parameters that a module owns itself, in the optimizer.
struct layer_figures {
  std::string name;             ///< of the module
  double gradient_norm = 0.0;   ///< L2, before clipping
  double parameter_norm = 0.0;  ///< L2, after the update
  double update_ratio = 0.0;    ///< L2 norm of what the update changed, over that of the parameters; 1e-3 is usual
};

/// Of the output of a keel::unit in the update's first micro-batch; on a CPU of an even sample of at most 4,096 values.
struct activation_figures {
  std::string name;        ///< the module's, or "unit.N" for a function
  double mean = 0.0;       ///< of the output's elements
  double deviation = 0.0;  ///< standard deviation of the output's elements
};

/// What one look at the layers found.
struct layer_record {
  std::int64_t update = 0;                                       ///< updates applied, the measured one included
  std::vector<layer_figures> layers;                             ///< with parameters in the optimizer
  std::vector<activation_figures> activations;                   ///< of units that ran
  std::vector<std::pair<std::string, histogram>> distributions;  ///< "gradients/NAME", "weights/NAME", "activations/NAME"
};

}  // namespace keel::inline KEEL_MODE
