// What a step, and what a run came to, as values. A skipped update is an outcome like any other: schedule, metrics, cadence and
// the stop poll all see it.
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
  zero_weight,  ///< no row of it counted, as where all labels are masked
  out_of_memory
};

/// A few words, such as "non-finite loss".
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

/// The cases of step_outcome and outcome.
namespace result {

/// A micro-batch was added; the update waits for more.
struct accumulated {
  std::int64_t micro_batches;  ///< so far
  std::int64_t of;             ///< that the update takes
};
/// The update is under way on a device; the next call, or settle(), returns its outcome.
struct pending {};
/// The update was applied.
struct updated {
  double loss;           ///< weighted mean over the update's micro-batches
  double gradient_norm;  ///< joint L2 norm, before clipping
  double learning_rate;  ///< of the first parameter group
  bool clipped = false;  ///< the clip policy changed the gradients
};
/// The update was attempted and not applied: parameters, optimizer state and schedule are as they were before it.
struct skipped {
  reason why;  ///< the reason
  std::string
      where;  ///< the first parameter with a non-finite gradient, the named loss or the buffer that is not finite, or empty
  std::string origin =
      {};  ///< where the first value that is not finite came from, in words; empty where keel::incident did not look
};
/// The ladder's last rung was reached, or the policy that skips updates tolerates no more of them.
struct gave_up {
  reason why;          ///< the reason of the last skipped update, or out_of_memory
  std::string detail;  ///< of skipped updates the sentence of the error that a step throws
};
/// The run reached its length, or the end of its data.
struct finished {
  std::int64_t updates;  ///< applied, over all starts of the run
};
/// The run was asked to stop, and saved a checkpoint if its recipe has them.
struct stopped {
  int signal;            ///< 0: by trainer::request_stop
  std::int64_t updates;  ///< applied, over all starts of the run
};

}  // namespace result

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// A case of a temporary, or nothing: asked as a pointer is, and kept for as long as it is named.
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

/// One of the cases, and how to ask for it.
template <class... Cases>
class one_of {
 public:
  using value_type = std::variant<Cases...>;  ///< any of the cases

  /// Of one of the cases.
  template <class Case>
    requires(std::same_as<Case, Cases> || ...)
  one_of(Case value) : value_(std::move(value)) {}

  /// True if it is this case.
  template <class Case>
  bool is() const {
    return std::holds_alternative<Case>(value_);
  }
  /// The case's value; throws std::bad_variant_access if it is another case.
  template <class Case>
  Case const& get() const& {
    return std::get<Case>(value_);
  }
  /// The same of a temporary.
  template <class Case>
  Case get() && {
    return std::get<Case>(std::move(value_));
  }
  /// The case's value, or null if it is another case. A temporary is gone behind `if (auto const* u = ..)`: it gives its value away.
  template <class Case>
  Case const* get_if() const& {
    return std::get_if<Case>(&value_);
  }
  template <class Case>
  Case const* get_if() const&& = delete;
  /// The same of a temporary: the case's value, or nothing.
  template <class Case>
  held_case<Case> get_if() && {
    if (!is<Case>()) return {};
    return std::get<Case>(std::move(value_));
  }
  /// Calls the visitor with the case's value, and returns what it returns.
  template <class Visitor>
  decltype(auto) visit(Visitor&& visitor) const {
    return std::visit(std::forward<Visitor>(visitor), value_);
  }

 private:
  value_type value_;
};

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// What one call of a step came to. Each accessor returns the case's value, or null if it is another case:
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
