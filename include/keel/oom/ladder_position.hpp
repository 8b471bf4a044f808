// The position of a run on its oom::ladder: the rungs taken, the settings that they require, and the rung to take or release next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <keel/config/config.hpp>
#include <keel/core/error.hpp>
#include <keel/policy/attention.hpp>
#include <keel/policy/oom.hpp>
#include <keel/policy/recompute.hpp>
#include <optional>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// The settings that the recipe and the rungs taken require of a step.
struct memory_settings {
  std::int64_t pieces = 1;  ///< number of pieces per micro-batch
  recompute_kind recompute = recompute_kind::none;
  attention_kind attention = attention_kind::automatic;
  bool offload = false;     ///< offloads the optimizer's state
  bool quantized = false;   ///< quantizes the frozen base of the model's adapters
  std::int64_t length = 0;  ///< tokens per row; 0: all
  friend bool operator==(memory_settings const&, memory_settings const&) = default;
};

class ladder_position {
 public:
  explicit ladder_position(config const& recipe)
      : ladder_(recipe.oom),
        begin_{.recompute = recipe.recompute.kind,
               // The fused kernels have no second derivative.
               .attention = recipe.attention.kind == attention_kind::automatic && recipe.model.inner_gradients
                                ? attention_kind::math
                                : recipe.attention.kind,
               .offload = recipe.offload.kind == offload::kind::optimizer} {
    fold();
  }

  memory_settings const& relief() const { return relief_; }
  /// Number of rungs taken and not released.
  std::size_t taken() const { return taken_.size(); }

  /// Takes the next rung that still frees memory; returns give_up if there is none. `max_pieces`: the maximum number of pieces of a
  /// micro-batch. Rungs that change the experiment are skipped after the first of `updates` (O07). `can_take(index)` returns whether a rung
  /// is possible and permitted; it is called for each rung only when its turn comes.
  template <class CanTake>
  oom::rung_kind take_next(std::int64_t max_pieces, std::int64_t updates, CanTake const& can_take) {
    for (int index = first_candidate(); index < ladder_.count; ++index) {
      auto const& rung = ladder_.rungs[index];
      if (rung.kind == oom::rung_kind::give_up) break;
      if (rung.disturbance == oom::disturbance::semantic && updates > 0) continue;
      if (!would_free_memory(rung, max_pieces) || !can_take(index)) continue;
      push(rung);
      updates_since_change_ = 0;
      // The rung was released too early, because it is needed again.
      if (released_ == static_cast<std::int64_t>(rung.kind)) patience_ = std::min<std::int64_t>(2 * patience_, 1 << 20);
      released_ = -1;
      return rung.kind;
    }
    return oom::rung_kind::give_up;
  }

  /// Counts an update that did not run out of memory. Releases the last rung after the recipe's release_after and returns it; otherwise
  /// returns nullopt.
  std::optional<oom::rung_kind> updated();

  /// Stores the rungs by their kinds and not by their positions, so that a run can be resumed with another ladder. Throws checkpoint_error
  /// (E05) for an impossible number of updates.
  template <class Archive>
  void visit(Archive& archive) {
    archive("taken", taken_);
    archive("arguments", arguments_);
    archive("calm", updates_since_change_);
    archive("patience", patience_);
    archive("given_back", released_);
    // A damaged checkpoint must not yield rungs that do not exist.
    auto const is_rung = [](std::int64_t kind) {
      return kind > static_cast<std::int64_t>(oom::rung_kind::none) &&
             kind <= static_cast<std::int64_t>(oom::rung_kind::custom);
    };
    arguments_.resize(taken_.size());
    for (std::size_t i = taken_.size(); i-- > 0;) {
      if (is_rung(taken_[i])) continue;
      taken_.erase(taken_.begin() + static_cast<std::ptrdiff_t>(i));
      arguments_.erase(arguments_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    patience_ = std::clamp<std::int64_t>(patience_, 1, 1 << 20);
    if (updates_since_change_ < 0 || updates_since_change_ > std::int64_t{1} << 62)
      throw checkpoint_error("E05", "the checkpoint counts " + std::to_string(updates_since_change_) +
                                        " updates since the ladder's last change. Take an older checkpoint, and look at the "
                                        "disk.");
    fold();
  }

 private:
  /// Returns the index of the rung taken last if it may be repeated, as halving may, or else of the next one.
  int first_candidate() const;

  bool would_free_memory(oom::rung_settings const& rung, std::int64_t max_pieces) const;

  static std::int64_t argument_of(oom::rung_settings const& rung) {
    if (rung.kind == oom::rung_kind::enable_recompute) return static_cast<std::int64_t>(rung.recompute);
    return rung.kind == oom::rung_kind::shorten_sequence ? rung.length : 0;
  }
  void push(oom::rung_settings const& rung);

  void fold();

  oom::settings ladder_;
  memory_settings begin_;
  memory_settings relief_;
  std::vector<std::int64_t> taken_;        ///< kinds of rungs, in the order in which they were taken
  std::vector<std::int64_t> arguments_;    ///< the mode or length of each rung
  std::int64_t updates_since_change_ = 0;  ///< updates since the last change that did not run out of memory
  std::int64_t patience_ = 1;              ///< factor on release_after; doubles when a released rung is taken again
  std::int64_t released_ = -1;             ///< kind of the rung that was released last
};

/// Returns the name of a rung as written in a recipe.
char const* to_string(oom::rung_kind kind);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/oom/ladder_position.ipp>
#endif
