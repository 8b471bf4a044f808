// The outcomes of a step and of a run. A skipped update is a normal outcome: schedules, metrics, cadences and the stop check
// all see it.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace keel::inline KEEL_MODE {

/// Why an update was not applied.
enum class reason : unsigned char {
  nonfinite_loss,
  nonfinite_gradient,
  nonfinite_buffer,
  scale_overflow,
  loss_spike,
  gradient_spike,
  zero_weight,  ///< no row has weight, for example because all labels are masked
  out_of_memory
};

/// Returns a short description, such as "non-finite loss".
inline char const* to_string(reason why) {
  switch (why) {
    case reason::nonfinite_loss:
      return "non-finite loss";
    case reason::nonfinite_gradient:
      return "non-finite gradient";
    case reason::nonfinite_buffer:
      return "non-finite buffer";
    case reason::scale_overflow:
      return "overflow of the loss scale";
    case reason::loss_spike:
      return "spike of the loss";
    case reason::gradient_spike:
      return "spike of the gradient norm";
    case reason::zero_weight:
      return "zero weight";
    case reason::out_of_memory:
      return "out of memory";
  }
  return "unknown";
}

/// The alternatives of step_outcome and outcome.
namespace result {

/// A micro-batch was accumulated; the update needs more of them.
struct accumulated {
  std::int64_t micro_batches;  ///< accumulated so far
  std::int64_t needed;         ///< needed for the update
};
/// The update is still running on a device. The next call, or settle(), returns its outcome.
struct pending {};
/// The update was applied.
struct updated {
  double loss;           ///< weighted mean over the update's micro-batches
  double gradient_norm;  ///< joint L2 norm, before clipping
  double learning_rate;  ///< of the first parameter group
  bool clipped = false;  ///< the clip policy changed the gradients
};
/// The update was attempted and rejected. Parameters, optimizer state and schedule are unchanged.
struct skipped {
  reason why;         ///< the reason
  std::string where;  ///< the first non-finite parameter gradient, named loss or buffer; may be empty
  std::string origin =
      {};  ///< a description of the first non-finite value's source; empty unless keel::incident searched for it
};
/// The last rung of the ladder was reached, or the policy tolerates no more skipped updates.
struct gave_up {
  reason why;          ///< the reason of the last skipped update, or out_of_memory
  std::string detail;  ///< for skipped updates, the message of the error that a step throws
};
/// The run reached its length or the end of its data.
struct finished {
  std::int64_t updates;  ///< applied updates, including earlier starts of the run
};
/// The run was asked to stop. It has saved a checkpoint if its recipe has checkpoints.
struct stopped {
  int signal;            ///< the signal's number; 0 for trainer::request_stop
  std::int64_t updates;  ///< applied updates, including earlier starts of the run
};

}  // namespace result

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Holds an alternative of a temporary, or is empty. Converts to bool and compares with nullptr, as a pointer does.
template <class Case>
class held_case : public std::optional<Case> {
 public:
  using std::optional<Case>::optional;
  template <std::same_as<bool> Bool>
  operator Bool() const {
    return this->has_value();
  }
  friend bool operator==(held_case const& one, std::nullptr_t) { return !one.has_value(); }
};

/// A variant with named access to its alternatives.
template <class... Cases>
class one_of {
 public:
  using value_type = std::variant<Cases...>;  ///< the underlying variant

  /// Holds the given alternative.
  template <class Case>
    requires(std::same_as<Case, Cases> || ...)
  one_of(Case value) : value_(std::move(value)) {}

  /// Returns true if this alternative is held.
  template <class Case>
  bool is() const {
    return std::holds_alternative<Case>(value_);
  }
  /// Returns the alternative's value. Throws std::bad_variant_access if another one is held.
  template <class Case>
  Case const& get() const& {
    return std::get<Case>(value_);
  }
  /// As above, for a temporary.
  template <class Case>
  Case get() && {
    return std::get<Case>(std::move(value_));
  }
  /// Returns a pointer to the alternative, or null if another one is held. On a temporary, the overload below returns a value,
  /// so that `if (auto const u = ..)` does not dangle.
  template <class Case>
  Case const* get_if() const& {
    return std::get_if<Case>(&value_);
  }
  template <class Case>
  Case const* get_if() const&& = delete;
  /// As above, for a temporary: returns the alternative by value, or an empty value.
  template <class Case>
  held_case<Case> get_if() && {
    if (!is<Case>()) return {};
    return std::get<Case>(std::move(value_));
  }
  /// Calls the visitor with the held alternative, and returns its result.
  template <class Visitor>
  decltype(auto) visit(Visitor&& visitor) const {
    return std::visit(std::forward<Visitor>(visitor), value_);
  }

 private:
  value_type value_;
};

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// The outcome of one call of a step. Each accessor returns its alternative, or null if another one is held:
/// `if (auto const u = step(batch, loss_of).updated()) report(u->loss);`
class step_outcome
    : public detail::one_of<result::accumulated, result::pending, result::updated, result::skipped, result::gave_up> {
 public:
  using one_of::one_of;
  result::accumulated const* accumulated() const& { return get_if<result::accumulated>(); }
  detail::held_case<result::accumulated> accumulated() && { return std::move(*this).get_if<result::accumulated>(); }
  result::pending const* pending() const& { return get_if<result::pending>(); }
  detail::held_case<result::pending> pending() && { return std::move(*this).get_if<result::pending>(); }
  result::updated const* updated() const& { return get_if<result::updated>(); }
  detail::held_case<result::updated> updated() && { return std::move(*this).get_if<result::updated>(); }
  result::skipped const* skipped() const& { return get_if<result::skipped>(); }
  detail::held_case<result::skipped> skipped() && { return std::move(*this).get_if<result::skipped>(); }
  result::gave_up const* gave_up() const& { return get_if<result::gave_up>(); }
  detail::held_case<result::gave_up> gave_up() && { return std::move(*this).get_if<result::gave_up>(); }
};

/// How a run ended.
class outcome : public detail::one_of<result::finished, result::stopped, result::gave_up> {
 public:
  using one_of::one_of;
  result::finished const* finished() const& { return get_if<result::finished>(); }
  detail::held_case<result::finished> finished() && { return std::move(*this).get_if<result::finished>(); }
  result::stopped const* stopped() const& { return get_if<result::stopped>(); }
  detail::held_case<result::stopped> stopped() && { return std::move(*this).get_if<result::stopped>(); }
  result::gave_up const* gave_up() const& { return get_if<result::gave_up>(); }
  detail::held_case<result::gave_up> gave_up() && { return std::move(*this).get_if<result::gave_up>(); }
};

}  // namespace keel::inline KEEL_MODE
