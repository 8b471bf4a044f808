// What a step or a run came to, as a value. A skipped step is an outcome like any other: schedule, metrics, cadence and the
// stop poll all see it.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace keel {

enum class reason : unsigned char {
  nonfinite_loss,
  nonfinite_gradient,
  scale_overflow,
  loss_spike,
  gradient_spike,
  out_of_memory
};

inline char const* to_string(reason why) {
  switch (why) {
    case reason::nonfinite_loss:
      return "non-finite loss";
    case reason::nonfinite_gradient:
      return "non-finite gradient";
    case reason::scale_overflow:
      return "overflow of the loss scale";
    case reason::loss_spike:
      return "spike of the loss";
    case reason::gradient_spike:
      return "spike of the gradient norm";
    case reason::out_of_memory:
      return "out of memory";
  }
  return "unknown";
}

class outcome {
 public:
  /// A micro-batch was added; the update waits for more.
  struct accumulated {
    std::int64_t micro_batches;
    std::int64_t of;
  };
  /// The update is under way on a device; the next call, or settle(), says what became of it.
  struct pending {};
  /// The parameters were updated.
  struct updated {
    double loss;           ///< weighted mean over the window
    double gradient_norm;  ///< joint L2 norm, before clipping
    double learning_rate;  ///< of the first parameter group
    bool clipped = false;  ///< the clip policy changed the gradients
  };
  /// Parameters, optimizer state and schedule are as they were before the window.
  struct skipped {
    reason why;
    std::string where;  ///< the first parameter with a non-finite gradient, or empty
  };
  /// A run came to its end.
  struct finished {
    std::int64_t updates;
  };
  /// A run was asked to stop, and saved a checkpoint if its recipe has them.
  struct stopped {
    int signal;  ///< 0: by trainer::request_stop
    std::int64_t updates;
  };
  /// The ladder's last rung was reached.
  struct gave_up {
    reason why;
    std::string detail;
  };

  using value_type = std::variant<accumulated, pending, updated, skipped, finished, stopped, gave_up>;

  template <class Case>
  requires std::constructible_from<value_type, Case> outcome(Case value) : value_(std::move(value)) {}

  template <class Case>
  bool is() const {
    return std::holds_alternative<Case>(value_);
  }
  /// The case's value; throws std::bad_variant_access if it is another case.
  template <class Case>
  Case const& get() const {
    return std::get<Case>(value_);
  }
  /// The case's value, or null if it is another case.
  template <class Case>
  Case const* get_if() const {
    return std::get_if<Case>(&value_);
  }
  template <class Visitor>
  decltype(auto) visit(Visitor&& visitor) const {
    return std::visit(std::forward<Visitor>(visitor), value_);
  }

 private:
  value_type value_;
};

}  // namespace keel
