// Counts skipped updates, and decides whether the run continues, ends or rolls back.
#pragma once

#include <cstdint>
#include <keel/config/config.hpp>
#include <keel/core/error.hpp>
#include <keel/core/outcome.hpp>
#include <keel/nonfinite/nonfinite_guard.hpp>
#include <keel/spike/spike_guard.hpp>
#include <optional>
#include <string>
#include <utility>

namespace keel::inline KEEL_MODE {

/// Why a run rolls back to a checkpoint.
struct rollback_request {
  std::string why;
  bool spike = false;                                ///< requested by keel::spike; otherwise by keel::nonfinite
  reason last_skip_reason = reason::nonfinite_loss;  ///< why the last update was skipped
};

class update_guards {
 public:
  explicit update_guards(config const& recipe) : nonfinite_(recipe.nonfinite), spike_(recipe.spike) {}

  spike_guard const& spike() const { return spike_; }

  void accepted(step_outcome const& result) {
    nonfinite_.accepted();
    spike_.accepted(result);
    zero_weights_ = 0;
  }

  /// Counts a skipped update; `update` is 1-based. Throws nonfinite_error (E08) or diverged_error (E14) if this skip ends the run, and
  /// data_error (E07) for the 100th consecutive update of weight zero.
  void skipped(reason why, std::string const& where, std::string const& origin, double loss, double norm, std::int64_t update) {
    if (why == reason::zero_weight) {
      if (++zero_weights_ < max_zero_weights) return;
      throw data_error(
          "E07", "update " + std::to_string(update) + ": " + std::to_string(zero_weights_) +
                     " consecutive updates had a total weight of zero, so nothing is trained. Check the mask and the weight of "
                     "keel::weighted_loss.");
    }
    zero_weights_ = 0;
    bool const spike = why == reason::loss_spike || why == reason::gradient_spike;
    auto const message = spike ? spike_.skipped(why, why == reason::loss_spike ? loss : norm, update)
                               : nonfinite_.skipped(why, where, update, origin);
    if (message) request_ = rollback_request{*message, spike, why};
  }

  /// Returns and clears the rollback request; nullopt if the recipe tolerates further skips.
  std::optional<rollback_request> take_rollback_request() { return std::exchange(request_, std::nullopt); }

  template <class Archive>
  void visit(Archive& archive) {
    archive("nonfinite", nonfinite_);
    archive("spike", spike_);
  }

 private:
  nonfinite_guard nonfinite_;
  spike_guard spike_;
  static constexpr std::int64_t max_zero_weights = 100;
  std::int64_t zero_weights_ = 0;  ///< consecutive updates of weight zero
  std::optional<rollback_request> request_;
};

}  // namespace keel::inline KEEL_MODE
