// Who decides that an update is left out, and what a row of those comes to: the run bears it, ends, or is to go back.
#pragma once

#include <cstdint>
#include <keel/config/config.hpp>
#include <keel/core/outcome.hpp>
#include <keel/nonfinite/nonfinite_guard.hpp>
#include <keel/spike/spike_guard.hpp>
#include <optional>
#include <string>
#include <utility>

namespace keel {

/// What a run goes back to a checkpoint for.
struct rollback_wish {
  std::string why;
  bool spike = false;  ///< by keel::spike; otherwise by keel::nonfinite
};

class update_guards {
 public:
  explicit update_guards(config const& recipe) : nonfinite_(recipe.nonfinite), spike_(recipe.spike) {}

  spike_guard const& spike() const { return spike_; }

  void accepted(outcome const& result) {
    nonfinite_.accepted();
    spike_.accepted(result);
  }

  /// One more update is left out. Throws nonfinite_error (E08) or diverged_error (E14) where that ends the run; `update` counts
  /// from 1.
  void left_out(reason why, std::string const& where, double loss, double norm, std::int64_t update) {
    bool const spike = why == reason::loss_spike || why == reason::gradient_spike;
    auto const words =
        spike ? spike_.left_out(why, why == reason::loss_spike ? loss : norm, update) : nonfinite_.left_out(why, where, update);
    if (words) wish_ = rollback_wish{*words, spike};
  }

  /// The last update was the last that the recipe bears before it goes back; asked once.
  std::optional<rollback_wish> take_rollback_wish() { return std::exchange(wish_, std::nullopt); }

  template <class Archive>
  void visit(Archive& archive) {
    archive("nonfinite", nonfinite_);
    archive("spike", spike_);
  }

 private:
  nonfinite_guard nonfinite_;
  spike_guard spike_;
  std::optional<rollback_wish> wish_;
};

}  // namespace keel
